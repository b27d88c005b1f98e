"""A real helm installs, upgrades and uninstalls what a watchdog creates and restores."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from app.core.errors import ClusterRefused
from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from app.devcluster.processes import child_environment
from app.kube.client import Client
from app.kube.enforcement_spec import BINDING, CONFIG_MAP, PATHS, Object
from tests.support.enforcement_fixture import (
    MUTATING,
    POLICY,
    VALIDATING,
    Counting,
    Kept,
    certificate,
    hook,
    ref,
    until,
)


class Release:
    """A separate chart with the documents of `kept`, installed and upgraded by helm."""

    def __init__(self, kept: Kept, cluster: LocalCluster, tools: Tools, folder: Path) -> None:
        self.kept = kept
        self._kubeconfig = cluster.kubeconfig
        self._helm = tools.helm
        self._folder = folder

    async def helm(self, verb: str) -> None:
        """Run helm with the current documents until it ends."""
        templates = self._folder / "chart" / "templates"
        templates.mkdir(parents=True, exist_ok=True)
        chart = {"apiVersion": "v2", "name": "kept", "version": "1.0.0"}
        (templates.parent / "Chart.yaml").write_text(yaml.safe_dump(chart))
        (templates / "all.yaml").write_text(yaml.safe_dump_all(self._objects()))
        where = ["--namespace", self.kept.name, "--kubeconfig", str(self._kubeconfig)]
        what = [] if verb == "uninstall" else [str(templates.parent)]
        done = await asyncio.create_subprocess_exec(
            str(self._helm),
            *(verb, self.kept.name, *what, *where),
            env=child_environment(self._folder),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await done.communicate()
        assert done.returncode == 0, said.decode()

    def _objects(self) -> list[Object]:
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP}}
        return [{**config, "data": self.kept.data()}, self.kept.role()]


@pytest.fixture
async def release(
    cluster: LocalCluster, cluster_tools: Tools, tmp_path: Path
) -> AsyncIterator[Release]:
    client = await Client.connect(cluster.kubeconfig)
    kept = Kept(client, certificate(cluster.kubeconfig))
    space = {"metadata": {"name": kept.name}}
    await client.request("POST", "/api/v1/namespaces", body=space)
    release = Release(kept, cluster, cluster_tools, tmp_path)
    await release.helm("install")
    yield release
    await kept.remove()
    await client.close()


async def gone_for_good(kept: Kept, counting: Counting) -> None:
    """Wait until no object exists and the watchdog has checked each path several times."""
    paths = [kept.path(kind) for kind in (*PATHS, "ConfigMap")]

    async def gone() -> bool:
        return [await kept.get(path) for path in paths] == [None] * len(paths)

    await until(gone)
    before = {path: counting.looks(path) for path in paths}

    async def looked() -> bool:
        return all(counting.looks(path) > before[path] + 3 for path in paths)

    await until(looked)
    assert await gone()


async def test_an_upgrade_ends_with_the_new_objects(release: Release) -> None:
    kept = release.kept
    async with kept.keeping():
        await kept.settle()
        mutating, validating, policy, binding = kept.documents
        mutating["webhooks"][0] |= {"timeoutSeconds": 3, "matchPolicy": "Exact"}
        mutating["webhooks"][0].pop("matchConditions")
        mutating["webhooks"][1]["name"] = "renamed.fairgate.io"
        validating["webhooks"].append(hook("second.fairgate.io"))
        policy["spec"]["validations"][0]["expression"] = "true"
        binding["spec"]["validationActions"] = ["Deny", "Audit"]
        second = copy.deepcopy(policy)
        second["metadata"]["name"] = f"{kept.name}-second"
        kept.documents.append(second)
        await release.helm("upgrade")

        async def made() -> bool:  # the last one is the configuration that validates
            return len((await kept.find(VALIDATING))["webhooks"]) == 2

        await until(made)
        first, other = (await kept.find(MUTATING))["webhooks"]
        assert (first["timeoutSeconds"], first["matchPolicy"]) == (3, "Exact")
        assert "matchConditions" not in first
        assert other["name"] == "renamed.fairgate.io"
        for kind in (MUTATING, VALIDATING):
            hooks = (await kept.find(kind))["webhooks"]
            assert len(hooks) == 2
            assert all(each["clientConfig"]["caBundle"] for each in hooks)
        assert (await kept.find(POLICY))["spec"]["validations"][0]["expression"] == "true"
        assert (await kept.find(BINDING))["spec"]["validationActions"] == ["Deny", "Audit"]
        assert await kept.get(ref(second).path) is not None
        assert not kept.guarded.restores
    await kept.client.request("DELETE", ref(second).path)


async def test_a_config_map_that_was_put_back_is_still_helms_to_upgrade(release: Release) -> None:
    kept = release.kept
    async with kept.keeping():
        await kept.settle()
        await kept.client.request("DELETE", kept.map_path)

        async def back() -> bool:
            return kept.guarded.restores["ConfigMap"] == 1

        await until(back)
        kept.documents[3]["spec"]["validationActions"] = ["Deny", "Audit"]
        await release.helm("upgrade")

        async def upgraded() -> bool:
            spec = (await kept.find(BINDING))["spec"]
            return bool(spec["validationActions"] == ["Deny", "Audit"])

        await until(upgraded)


@pytest.mark.parametrize("observing", [False, True], ids=["enforcing", "observing"])
async def test_uninstall_leaves_no_enforcement_objects(release: Release, observing: bool) -> None:
    kept = release.kept
    kept.observes = observing
    counting = Counting(kept.client)
    async with kept.keeping(counting):
        await kept.settle()
        await release.helm("uninstall")
        await gone_for_good(kept, counting)


ORDERS = (
    (MUTATING, VALIDATING, POLICY, BINDING, "ConfigMap", "ClusterRole"),
    ("ClusterRole", "ConfigMap", BINDING, POLICY, VALIDATING, MUTATING),
    ("ConfigMap", MUTATING, "ClusterRole", VALIDATING, POLICY, BINDING),
)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order[0])
async def test_no_object_is_restored_after_all_are_deleted_in_any_order(
    release: Release, order: tuple[str, ...]
) -> None:
    kept = release.kept
    counting = Counting(kept.client)
    async with kept.keeping(counting):
        await kept.settle()
        for kind in order:
            path = kept.role_path if kind == "ClusterRole" else kept.path(kind)
            with contextlib.suppress(ClusterRefused):  # the garbage collector was first
                await kept.client.request("DELETE", path)
        await gone_for_good(kept, counting)
    await release.helm("uninstall")


@pytest.mark.parametrize("rounds", [3])
async def test_installing_again_at_once_works(release: Release, rounds: int) -> None:
    """The old watchdog still runs, like a replica that shuts down slowly."""
    kept = release.kept
    async with kept.keeping():
        await kept.settle()
        for _ in range(rounds):
            await release.helm("uninstall")
            await release.helm("install")

        async def in_force() -> bool:
            found = [await kept.get(kept.path(kind)) for kind in (*PATHS, "ConfigMap")]
            return all(each and not dead(each, role) for each in found)

        role = await kept.get(kept.role_path)
        assert role is not None
        await until(in_force)
        await kept.settle()


def dead(item: Object, role: Object) -> bool:
    """Return whether the garbage collector will delete an object."""
    owners = item["metadata"].get("ownerReferences") or []
    return any(each["uid"] != role["metadata"]["uid"] for each in owners)
