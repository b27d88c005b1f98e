"""`fairgate convert` names a missing file, and writes the columns of `fairgate replay`."""

from __future__ import annotations

from pathlib import Path

from tests.support.command_line import fairgate


def test_missing_file_is_named_in_the_error() -> None:
    done = fairgate("convert", "slurm", "missing.cfg")
    assert done.returncode == 2
    assert "missing.cfg cannot be read" in done.stderr


def test_a_log_is_printed_with_the_columns_of_replay(tmp_path: Path) -> None:
    log = tmp_path / "cluster_log.csv"
    header = "job_id,user,vc,gpu_num,cpu_num,node_num,submit_time,duration"
    log.write_text(f"{header}\n1,u,vc,8,32,1,2020-06-09 18:41:01,60\n")
    done = fairgate("convert", "helios", log)
    assert done.stdout.splitlines()[1:] == ["0,vc,u,1,1,8,32,,,60"]
    assert done.stderr == "fairgate: 1 of 1 jobs were converted.\n"
    (tmp_path / "replay.csv").write_text(done.stdout)
    assert fairgate("replay", tmp_path / "replay.csv", "--gpus", "8").returncode == 0


def test_hidden_characters_of_a_note_are_escapes(tmp_path: Path) -> None:
    queues = tmp_path / "queues.yaml"
    meta = 'metadata: {name: "a\\e]0;x\\a\\u202e"}'
    queues.write_text(f"apiVersion: kueue.x-k8s.io/v1beta1\nkind: ClusterQueue\n{meta}\n")
    done = fairgate("convert", "kueue", queues)
    assert "ClusterQueue a\\u001b]0;x\\u0007\\u202e: " in done.stderr
