"""The locks contain everything that any supported Python version needs.

The runtime lock is for the image. It contains only packages that Fairgate needs.
"""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


DEVELOPMENT, RUNTIME = "requirements.lock", "requirements-runtime.lock"
PYTHONS = ["3.11.0", "3.11.2", "3.11.3", "3.12.0", "3.13.0", "3.14.0"]


def locked(lock: str) -> list[Requirement]:
    lines = (ROOT / lock).read_text().splitlines()
    pins = [line.removesuffix("\\") for line in lines if re.match(r"[A-Za-z0-9]", line)]
    return [Requirement(pin) for pin in pins]


def artifacts(lock: str) -> dict[str, frozenset[str]]:
    """Return the hashes of each pinned version, whatever platforms its marker names."""
    text = (ROOT / lock).read_text()
    pins = re.findall(r"^([A-Za-z0-9].*?) \\\n((?: +--hash=\S+(?: \\)?\n)+)", text, re.MULTILINE)
    return {
        pin.partition(" ;")[0]: frozenset(re.findall(r"--hash=(\S+)", hashes))
        for pin, hashes in pins
    }


def environment(python: str) -> dict[str, str]:
    short = ".".join(python.split(".")[:2])
    return {**default_environment(), "python_version": short, "python_full_version": python}  # type: ignore[dict-item]


def declared(lock: str) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values() if lock == DEVELOPMENT else ()
    return [*project["dependencies"], *chain.from_iterable(extras)]


def required_by(name: str) -> list[str]:
    """Return the requirements of an installed distribution; empty if it is for another Python."""
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def active(written: list[str], where: dict[str, str]) -> list[Requirement]:
    found = [Requirement(each) for each in written]
    return [each for each in found if each.marker is None or each.marker.evaluate(where)]


def wanted(lock: str, where: dict[str, str]) -> list[tuple[str, Requirement]]:
    """Return each requirement, with the name of the package that has it."""
    pins = [pin for pin in locked(lock) if pin.marker is None or pin.marker.evaluate(where)]
    direct = [("fairgate", each) for each in active(declared(lock), where)]
    return direct + [
        (pin.name, each) for pin in pins for each in active(required_by(pin.name), where)
    ]


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(("lock", "least"), [(DEVELOPMENT, 100), (RUNTIME, 40)])
def test_a_lock_is_complete_for_every_supported_python(lock: str, least: int, python: str) -> None:
    where = {**environment(python), "extra": ""}
    pins = [pin for pin in locked(lock) if pin.marker is None or pin.marker.evaluate(where)]
    versions = {canonicalize_name(pin.name): pin.specifier for pin in pins}
    missing = [
        f"{who} needs {each}" for who, each in wanted(lock, where) if not held(each, versions)
    ]
    assert len(versions) > least
    assert missing == []


def test_the_runtime_lock_has_the_artifacts_of_the_development_lock() -> None:
    development, runtime = artifacts(DEVELOPMENT), artifacts(RUNTIME)
    assert len(runtime) == len(locked(RUNTIME))
    assert {pin: development.get(pin) for pin in runtime} == runtime


def test_the_runtime_lock_has_no_package_that_fairgate_does_not_need() -> None:
    where = {**environment("3.11.2"), "extra": ""}
    # Packages for another system are not installed here, and their metadata would be needed.
    pins = [pin for pin in locked(RUNTIME) if pin.marker is None or pin.marker.evaluate(where)]
    needed = {canonicalize_name(each.name) for _, each in wanted(RUNTIME, where)}
    assert {canonicalize_name(pin.name) for pin in pins} == needed


def held(wanted: Requirement, versions: dict[str, object]) -> bool:
    pin = versions.get(canonicalize_name(wanted.name))
    return pin is not None and wanted.specifier.contains(str(pin).removeprefix("=="))
