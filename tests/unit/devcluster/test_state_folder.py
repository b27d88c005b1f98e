"""The folder of a local cluster or node: its kind, and files that cannot be read."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from app.core.errors import InvalidInput
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.node.real_node import RealNode
from app.devcluster.processes import ChildProcess, birth
from app.devcluster.state_dir import claim_folder
from app.devcluster.state_files import MARK, FolderKind, StateUnreadable

OF_NODE, OF_CLUSTER = ("kernel.json", FolderKind.NODE), ("cluster.json", FolderKind.CLUSTER)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


def marked(folder: Path, file: str, kind: FolderKind, *, empty: bool) -> Path:
    """Make the folder as this version marks it, or with the empty mark of earlier versions."""
    claim_folder(folder, kind)
    if empty:
        (folder / MARK).write_text("")
    (folder / file).write_text("{}")
    return folder


@pytest.mark.parametrize("empty", [False, True])
def test_a_cluster_is_not_taken_down_as_a_node_or_a_node_as_a_cluster(
    tmp_path: Path, empty: bool
) -> None:
    node = marked(tmp_path / "n", *OF_NODE, empty=empty)
    with pytest.raises(
        InvalidInput, match=f"has a local node.* `fairgate dev node down --dir {node}`"
    ):
        LocalCluster(node).down()
    assert (node / "kernel.json").exists()
    cluster = marked(tmp_path / "c", *OF_CLUSTER, empty=empty)
    with pytest.raises(
        InvalidInput, match=f"has a local cluster.* `fairgate dev down --dir {cluster}`"
    ):
        RealNode(cluster).down()
    assert (cluster / "cluster.json").exists()


@pytest.mark.parametrize("empty", [False, True])
def test_a_folder_of_the_other_kind_is_not_claimed(tmp_path: Path, empty: bool) -> None:
    for (file, kind), other in ((OF_NODE, FolderKind.CLUSTER), (OF_CLUSTER, FolderKind.NODE)):
        folder = marked(tmp_path / kind.value, file, kind, empty=empty)
        with pytest.raises(InvalidInput, match="take it down by"):
            claim_folder(folder, other)
        claim_folder(folder, kind)
        assert (folder / MARK).read_text() == f"{kind.value}\n"


@pytest.mark.parametrize(
    "written", ["", '{"options":', '{"options":{},"kubectl":"k","redis":"r","ready":true}', "[]"]
)
def test_unreadable_state_is_named_with_its_remedy_and_is_not_up(
    tmp_path: Path, written: str
) -> None:
    cluster = LocalCluster(marked(tmp_path / "c", *OF_CLUSTER, empty=False))
    (cluster.folder / "cluster.json").write_text(written)
    remedy = f"cluster.json is damaged.*`fairgate dev down --dir {cluster.folder}` first"
    with pytest.raises(StateUnreadable, match=remedy):
        cluster.status()
    assert cluster._is_up(ClusterOptions()) is False
    assert cluster.down()
    assert not cluster.folder.exists()


@pytest.mark.parametrize("ending", [b"", b',"argv":["x"]}', b',"argv":["x"],"environment":7}]'])
def test_a_damaged_record_of_processes_does_not_keep_the_cluster(
    tmp_path: Path, child: subprocess.Popen[bytes], ending: bytes
) -> None:
    cluster = LocalCluster(marked(tmp_path / "c", *OF_CLUSTER, empty=False))
    record = msgspec.json.encode([ChildProcess("a", child.pid, birth(child.pid) or "", (), {})])
    (cluster.folder / "processes.json").write_bytes(record.partition(b',"argv"')[0] + ending)
    with pytest.raises(StateUnreadable, match="is damaged"):
        cluster.processes.recorded()
    assert cluster.down()
    assert birth(child.pid) is None
    assert not cluster.folder.exists()
