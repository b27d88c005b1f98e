"""A real helm and a watchdog at work on the same objects: neither is in the other's way."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from app.dev.cluster import Cluster
from app.dev.tools import Tools
from app.kube.client import Client
from app.kube.enforcement import BINDING, CONFIG_MAP, PATHS, Object
from app.kube.watchdog import Pace
from tests.kept import MUTATING, POLICY, VALIDATING, Counting, Kept, certificate, hook, ref, until

PATIENT = Pace(look=0.05, sweep=0.3, grace=30.0, again=(0.05, 0.5), breath=0.05)
"""Leaves what it never saw to helm, as in earnest."""


class Release:
    """A chart of one's own, made of the documents of `kept`, installed and upgraded by helm."""

    def __init__(self, kept: Kept, cluster: Cluster, tools: Tools, folder: Path) -> None:
        self.kept = kept
        self._kubeconfig = cluster.kubeconfig
        self._helm = tools.helm
        self._folder = folder

    async def helm(self, verb: str) -> None:
        """Run helm to its end, with what the documents are now."""
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
            env={"PATH": os.defpath, "HOME": str(self._folder)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await done.communicate()
        assert done.returncode == 0, said.decode()

    def _objects(self) -> list[Object]:
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP}}
        return [{**config, "data": self.kept.data()}, *self.kept.documents]


@pytest.fixture
async def release(cluster: Cluster, cluster_tools: Tools, tmp_path: Path) -> AsyncIterator[Release]:
    client = await Client.connect(cluster.kubeconfig)
    kept = Kept(client, certificate(cluster.kubeconfig))
    space = {"metadata": {"name": kept.name}}
    await client.request("POST", "/api/v1/namespaces", body=space)
    release = Release(kept, cluster, cluster_tools, tmp_path)
    await release.helm("install")
    yield release
    await kept.remove()
    await client.close()


async def ca_of(kept: Kept, kind: str) -> list[str]:
    return [
        each["clientConfig"].get("caBundle", "") for each in (await kept.find(kind))["webhooks"]
    ]


async def test_an_upgrade_ends_with_the_new_objects(release: Release) -> None:
    kept = release.kept
    async with kept.keeping(pace=PATIENT):
        await kept.settle()
        mutating, validating, policy, binding = kept.documents
        mutating["webhooks"][0] |= {"timeoutSeconds": 3, "matchPolicy": "Exact"}
        mutating["webhooks"][0].pop("matchConditions")
        validating["webhooks"].append(hook("second.fairgate.io"))
        policy["spec"]["validations"][0]["expression"] = "true"
        binding["spec"]["validationActions"] = ["Deny", "Audit"]
        second = copy.deepcopy(policy)
        second["metadata"]["name"] = f"{kept.name}-second"
        kept.documents.append(second)
        await release.helm("upgrade")

        async def whole() -> bool:
            return all(await ca_of(kept, VALIDATING))

        await until(whole)
        [first, _] = (await kept.find(MUTATING))["webhooks"]
        assert (first["timeoutSeconds"], first["matchPolicy"]) == (3, "Exact")
        assert "matchConditions" not in first
        assert len((await kept.find(VALIDATING))["webhooks"]) == 2
        assert (await kept.find(POLICY))["spec"]["validations"][0]["expression"] == "true"
        assert (await kept.find(BINDING))["spec"]["validationActions"] == ["Deny", "Audit"]
        made = await kept.get(ref(second).path)
        assert made is not None
        assert made["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        assert not kept.guarded.restores
    await kept.client.request("DELETE", ref(second).path)


async def test_an_upgrade_never_takes_the_ca_away(release: Release) -> None:
    kept = release.kept
    async with kept.keeping(pace=PATIENT):
        await kept.settle()
    # Nobody would put it back now.
    kept.documents[0]["webhooks"][0]["timeoutSeconds"] = 3
    await release.helm("upgrade")
    assert (await kept.find(MUTATING))["webhooks"][0]["timeoutSeconds"] == 3
    for kind in (MUTATING, VALIDATING):
        assert all(await ca_of(kept, kind))


@pytest.mark.parametrize("kind", [MUTATING, POLICY, BINDING])
async def test_what_was_put_back_is_still_helms_to_upgrade(release: Release, kind: str) -> None:
    kept = release.kept
    async with kept.keeping(pace=PATIENT):
        await kept.settle()
        await kept.client.request("DELETE", kept.path(kind))

        async def back() -> bool:
            return kept.guarded.restores[kind] == 1

        await until(back)
        kept.documents[0]["webhooks"][0]["timeoutSeconds"] = 3
        kept.documents[2]["spec"]["validations"][0]["expression"] = "true"
        kept.documents[3]["spec"]["validationActions"] = ["Warn"]
        await release.helm("upgrade")
        assert (await kept.find(MUTATING))["webhooks"][0]["timeoutSeconds"] == 3
        assert (await kept.find(POLICY))["spec"]["validations"][0]["expression"] == "true"
        assert (await kept.find(BINDING))["spec"]["validationActions"] == ["Warn"]


async def test_an_undone_edit_is_not_in_the_way_of_an_upgrade(release: Release) -> None:
    kept = release.kept
    async with kept.keeping(pace=PATIENT):
        await kept.settle()
        await kept.edit(BINDING, lambda live: live["spec"].update(validationActions=["Warn"]))
        await kept.edit(MUTATING, lambda live: live.update(webhooks=[hook("evil.x.io")]))
        await kept.edit(POLICY, lambda live: live["spec"].update(failurePolicy="Ignore"))

        async def undone() -> bool:
            return all(kept.guarded.restores[kind] for kind in (BINDING, MUTATING, POLICY))

        await until(undone)
        kept.documents[0]["webhooks"][0]["timeoutSeconds"] = 3
        kept.documents[2]["spec"]["failurePolicy"] = "Fail"
        kept.documents[3]["spec"]["validationActions"] = ["Audit"]
        await release.helm("upgrade")
        hooks = (await kept.find(MUTATING))["webhooks"]
        assert [each["name"] for each in hooks] == ["a.fairgate.io", "b.fairgate.io"]
        assert hooks[0]["timeoutSeconds"] == 3
        assert (await kept.find(BINDING))["spec"]["validationActions"] == ["Audit"]


async def test_a_webhook_may_have_another_name_after_an_upgrade(release: Release) -> None:
    kept = release.kept
    async with kept.keeping(pace=PATIENT):
        await kept.settle()
        kept.documents[0]["webhooks"][0]["name"] = "renamed.fairgate.io"
        await kept.write()  # helm writes the ConfigMap first; wait as if it were slow

        async def renamed() -> bool:
            hooks = (await kept.find(MUTATING))["webhooks"]
            return [each["name"] for each in hooks] == ["renamed.fairgate.io", "b.fairgate.io"]

        await until(renamed)
        await release.helm("upgrade")
        assert await renamed()
        assert all(await ca_of(kept, MUTATING))


async def test_uninstalling_while_observing_leaves_nothing(release: Release) -> None:
    kept = release.kept
    counting = Counting(kept.client)
    async with kept.keeping(counting, PATIENT):
        await kept.settle()
        kept.observes = True

        async def observing() -> bool:
            return (await kept.find(BINDING))["spec"]["validationActions"] == ["Warn", "Audit"]

        await until(observing)
        await release.helm("uninstall")
        paths = [kept.path(kind) for kind in (*PATHS, "ConfigMap")]
        before = {path: counting.looks(path) for path in paths}

        async def looked() -> bool:
            return all(counting.looks(path) > before[path] + 3 for path in paths)

        await until(looked)
        assert [await kept.get(path) for path in paths] == [None] * 5
