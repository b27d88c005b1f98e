"""Which programs a local cluster uses: the version of Kubernetes, and the folder that is searched.

Programs are shell scripts that print a version.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core.errors import InvalidInput
from app.devcluster import binaries, go_build
from app.devcluster.kubernetes_versions import DEFAULT, VARIABLE, VERSIONS, named
from app.devcluster.progress import NoProgress

KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
OTHERS = {"etcd": "3.99.0", "kwok": "0.99.0", "helm": "4.99.0"}


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (VARIABLE, binaries.ASSETS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def folder_of(place: Path, kubernetes: str, programs: tuple[str, ...] = KUBERNETES) -> Path:
    """Create programs that report this version."""
    place.mkdir()
    for program in programs:
        program_in(place, program, f"Kubernetes v{kubernetes}")
    return place


def program_in(place: Path, name: str, said: str) -> Path:
    path = place / name
    path.write_text(f"#!/bin/sh\necho '{said}'\n")
    path.chmod(0o755)
    return path


def built(version_name: str) -> Path:
    """Put empty programs of all modules for one version into the cache; return their folder."""
    own = go_build.kubernetes(named(version_name))
    for module in (own, *go_build.MODULES):
        module.cache().mkdir(parents=True, exist_ok=True)
        for program in module.programs:
            (module.cache() / program).touch(mode=0o755)
    return own.cache()


def test_each_version_has_a_module_that_pins_it() -> None:
    for each in VERSIONS:
        module = go_build.kubernetes(each)
        assert module.version() == each.full
    assert len({go_build.kubernetes(each).cache() for each in VERSIONS}) == len(VERSIONS)


def test_a_version_is_named_by_its_minor_or_full_number() -> None:
    assert named("1.37").full == named("1.37.2").full == named("v1.37").full == "1.37.2"


@pytest.mark.parametrize("text", ["1.33", "1.37.1", "37", "latest", " "])
def test_an_unknown_version_is_refused_with_the_choice(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"choose one of 1\.34 \(1\.34\.4\), 1\.35"):
        named(text)


def test_default_version_is_used_without_a_choice() -> None:
    assert binaries.choose() == binaries.ToolChoice(DEFAULT, None)


def test_the_variable_names_the_version_and_the_option_overrides_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "1.34")
    assert binaries.choose().kubernetes.minor == "1.34"
    assert binaries.choose("1.37").kubernetes.minor == "1.37"


def test_a_wrong_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1.20")
    with pytest.raises(InvalidInput, match=r"Kubernetes '1\.20' is not available"):
        binaries.choose()


def test_the_api_server_in_the_folder_decides_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path / "own", "1.37.9")
    assert binaries.choose(folder=str(folder)).kubernetes.minor == "1.37"
    monkeypatch.setenv(binaries.ASSETS, str(folder))
    assert binaries.choose().kubernetes.minor == "1.37"


def test_an_untested_version_in_the_folder_counts_as_the_next_tested_one(tmp_path: Path) -> None:
    newer = folder_of(tmp_path / "newer", "1.38.0")
    older = folder_of(tmp_path / "older", "1.30.1")
    assert binaries.choose(folder=str(newer)).kubernetes.minor == "1.37"
    assert binaries.choose(folder=str(older)).kubernetes.minor == "1.34"


def test_a_folder_with_another_version_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "own", "1.36.3")
    with pytest.raises(InvalidInput, match=r"kube-apiserver is Kubernetes 1\.36\.3, not 1\.37;"):
        binaries.choose("1.37", str(folder))


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not a folder; name one with programs by --binaries"):
        binaries.choose(folder=str(tmp_path / "nothing"))


def test_each_version_is_found_in_its_own_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    old, new = built("1.34"), built("1.37")
    assert binaries.find(choice=binaries.choose("1.34")).apiserver == old / "kube-apiserver"
    found = binaries.find(choice=binaries.choose("1.37"))
    assert found.apiserver == new / "kube-apiserver"
    assert found.kubernetes.minor == "1.37"


def test_the_folder_is_searched_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    cached = built("1.37")
    folder = folder_of(tmp_path / "own", "1.37.3", ("kube-apiserver",))
    found = binaries.find(choice=binaries.choose("1.37", str(folder)))
    assert found.apiserver == folder / "kube-apiserver"
    assert found.scheduler == cached / "kube-scheduler"


def test_programs_in_path_are_used_only_for_their_own_minor_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = built("1.34")
    path = folder_of(tmp_path / "path", "1.36.9")
    for program, version in OTHERS.items():
        program_in(path, program, f"v{version}")
    monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")
    same = binaries.find(choice=binaries.choose("1.36"))
    assert (same.apiserver, same.etcd) == (path / "kube-apiserver", path / "etcd")
    other = binaries.find(choice=binaries.choose("1.34"))
    assert (other.apiserver, other.etcd) == (cached / "kube-apiserver", path / "etcd")


def test_pod_groups_are_offered_in_the_version_that_kubernetes_has() -> None:
    flags = {version.minor: version.pod_groups for version in VERSIONS}
    assert flags["1.36"] == "scheduling.k8s.io/v1alpha2"
    assert flags["1.37"] == "scheduling.k8s.io/v1beta1"
    assert named("1.36").pod_group_flags() == {
        "feature-gates": "GenericWorkload=true",
        "runtime-config": "scheduling.k8s.io/v1alpha2=true",
    }
    gates = "GenericWorkload=true,TopologyAwareWorkloadScheduling=true,CompositePodGroup=true"
    assert named("1.37").pod_group_flags() == {
        "feature-gates": gates,
        "runtime-config": "scheduling.k8s.io/v1beta1=true,scheduling.k8s.io/v1alpha3=true",
    }
    with pytest.raises(InvalidInput, match=r"Kubernetes 1\.34 has no pod groups"):
        named("1.34").pod_group_flags()


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(InvalidInput, match=f"The cache {tmp_path}/file/fairgate/tools cannot be"):
        go_build.build(go_build.MODULES[0], NoProgress())
