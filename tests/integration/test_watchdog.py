"""The watchdog on a real API server while the enforcing objects are edited or deleted."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from app.core.errors import ClusterRefused
from app.core.policy import Mode
from app.devcluster.cluster import LocalCluster
from app.kube.client import Client
from app.kube.enforcement_apply import Restorer
from app.kube.enforcement_spec import BINDING, PATHS, Object, content_field, desired_metadata
from tests.support.enforcement_fixture import (
    MUTATING,
    POLICY,
    QUICK,
    VALIDATING,
    Counting,
    Edit,
    Kept,
    certificate,
    contents,
    hook,
    until,
)

KINDS = [*PATHS, "ConfigMap"]


@pytest.fixture
async def kept(cluster: LocalCluster) -> AsyncIterator[Kept]:
    """One object of each kind, installed but not yet watched."""
    client = await Client.connect(cluster.kubeconfig)
    kept = Kept(client, certificate(cluster.kubeconfig))
    await kept.install()
    yield kept
    await kept.remove()
    await client.close()


async def is_back(kept: Kept, kind: str, before: Object) -> bool:
    return contents(await kept.get(kept.path(kind))) == contents(before)


async def restored(kept: Kept, kind: str, before: Object) -> None:
    """Wait until an object is restored and the restore is counted."""
    began = time.monotonic()
    await until(lambda: is_back(kept, kind, before))
    print(f"{kind} back after {time.monotonic() - began:.3f} s")

    async def counted() -> bool:
        return kept.guarded.restores[kind] > 0

    await until(counted)


# --- the CA ---


async def test_ca_is_written_to_every_webhook_without_counting_a_restore(kept: Kept) -> None:
    async with kept.keeping():
        objects = await kept.settle()
    bundles = {
        hook["clientConfig"]["caBundle"]
        for kind in (MUTATING, VALIDATING)
        for hook in objects[kind]["webhooks"]
    }
    assert [base64.b64decode(each) for each in bundles] == [kept.ca]
    assert not kept.guarded.restores


async def test_a_changed_ca_is_everywhere_once_it_is_published(kept: Kept) -> None:
    async with kept.keeping() as watchdog:
        await kept.settle()
        kept.ca += kept.ca
        await watchdog.publish(kept.ca)
        for kind in (MUTATING, VALIDATING):
            for each in (await kept.find(kind))["webhooks"]:
                assert base64.b64decode(each["clientConfig"]["caBundle"]) == kept.ca
    assert not kept.guarded.restores


async def test_changed_ca_is_published_without_a_call(kept: Kept) -> None:
    async with kept.keeping():
        await kept.settle()
        kept.ca += kept.ca
        wanted = base64.b64encode(kept.ca).decode()

        async def written() -> bool:
            [each] = (await kept.find(VALIDATING))["webhooks"]
            return bool(each["clientConfig"]["caBundle"] == wanted)

        await until(written)


async def ca_of(kept: Kept) -> set[bytes]:
    found = [await kept.find(kind) for kind in (MUTATING, VALIDATING)]
    return {
        base64.b64decode(hook["clientConfig"]["caBundle"])
        for each in found
        for hook in each["webhooks"]
    }


async def test_a_replica_that_is_behind_leaves_the_newer_ca_alone(kept: Kept) -> None:
    old, new = kept.ca, kept.ca + kept.ca

    async def is_new(ca_pem: bytes) -> bool:
        return ca_pem == new

    counting = Counting(kept.client)
    async with kept.keeping(), kept.keeping(counting, ca=lambda: old, is_ours=is_new):
        await kept.settle()
        writes = len(counting.writes)
        kept.ca = new

        async def written() -> bool:
            return await ca_of(kept) == {new}

        await until(written)
        looks = {kind: counting.looks(kept.path(kind)) for kind in (MUTATING, VALIDATING)}

        async def looked() -> bool:
            return all(counting.looks(kept.path(kind)) > looks[kind] + 3 for kind in looks)

        await until(looked)
        assert await written()
        assert len(counting.writes) == writes
    assert not kept.guarded.restores


async def test_new_ca_is_published_if_the_old_ca_is_also_valid(kept: Kept) -> None:
    async def is_any(ca_pem: bytes) -> bool:
        return True

    async with kept.keeping(is_ours=is_any) as watchdog:
        await kept.settle()
        kept.ca += kept.ca
        await watchdog.publish(kept.ca)
        assert await ca_of(kept) == {kept.ca}
    async with kept.keeping(is_ours=is_any) as watchdog:  # a watchdog that has just started
        kept.ca += kept.ca
        await watchdog.publish(kept.ca)
        assert await ca_of(kept) == {kept.ca}
    assert not kept.guarded.restores


async def test_ca_of_a_replica_that_stays_ahead_is_replaced_after_ca_wait(kept: Kept) -> None:
    old = kept.ca

    async def is_new(ca_pem: bytes) -> bool:
        return True

    async with kept.keeping(pace=replace(QUICK, ca_wait=0.5), ca=lambda: old, is_ours=is_new):
        await kept.settle()
        forged = base64.b64encode(old + old).decode()
        for kind in (MUTATING, VALIDATING):
            await kept.edit(
                kind,
                lambda live: [w["clientConfig"].update(caBundle=forged) for w in live["webhooks"]],
            )

        async def back() -> bool:
            return await ca_of(kept) == {old}

        await until(back)


async def test_enforcement_is_weakened_until_the_mode_is_known(kept: Kept) -> None:
    kept.observes = None
    counting = Counting(kept.client)
    async with kept.keeping(counting, replace(QUICK, mode_wait=3600.0)):
        kept.observes = True
        await kept.settle()
        assert await weakened(kept)


async def test_mode_is_enforce_if_it_stays_unknown(kept: Kept) -> None:
    kept.observes = None
    async with kept.keeping(pace=replace(QUICK, mode_wait=0.1)):
        objects = await kept.settle()
    assert objects[BINDING]["spec"]["validationActions"] == ["Deny"]


# --- changed objects are restored ---


@pytest.mark.parametrize("kind", KINDS)
async def test_deleted_object_is_restored(kept: Kept, kind: str) -> None:
    async with kept.keeping():
        before = (await kept.settle())[kind]
        await kept.client.request("DELETE", kept.path(kind))
        await restored(kept, kind, before)


def first(kind: str, change: Edit) -> Edit:
    """Return an edit of the first webhook, or of the spec."""
    return lambda live: change(live["webhooks"][0] if "webhooks" in live else live["spec"])


EDITS: dict[str, tuple[str, Edit]] = {
    "fails open": (MUTATING, first(MUTATING, lambda w: w.update(failurePolicy="Ignore"))),
    "asked about nothing": (
        MUTATING,
        first(MUTATING, lambda w: w["rules"][0].update(resources=["secrets"])),
    ),
    "sent elsewhere": (
        VALIDATING,
        first(VALIDATING, lambda w: w["clientConfig"].update(url="https://127.0.0.2/")),
    ),
    "a default overruled": (
        VALIDATING,
        first(VALIDATING, lambda w: w.update(matchPolicy="Exact", timeoutSeconds=1)),
    ),
    "objects selected by label": (
        MUTATING,
        first(MUTATING, lambda w: w.update(objectSelector=({"matchLabels": {"a": "b"}}))),
    ),
    "a condition more": (
        MUTATING,
        first(
            MUTATING,
            lambda w: w["matchConditions"].append({"name": "never", "expression": "false"}),
        ),
    ),
    "a condition less": (VALIDATING, first(VALIDATING, lambda w: w.pop("matchConditions"))),
    "a webhook more": (MUTATING, lambda live: live["webhooks"].insert(0, hook("evil.x.io"))),
    "a webhook less": (MUTATING, lambda live: live["webhooks"].pop()),
    "no webhook": (VALIDATING, lambda live: live.update(webhooks=[])),
    "another order": (MUTATING, lambda live: live["webhooks"].reverse()),
    "a CA gone": (
        VALIDATING,
        first(VALIDATING, lambda w: w["clientConfig"].pop("caBundle")),
    ),
    "a rule that is always true": (
        POLICY,
        lambda live: live["spec"]["validations"][0].update(expression="true"),
    ),
    "a policy that fails open": (POLICY, lambda live: live["spec"].update(failurePolicy="Ignore")),
    "a policy with a condition": (
        POLICY,
        lambda live: live["spec"].update(
            matchConditions=[{"name": "never", "expression": "false"}]
        ),
    ),
    "only a warning": (BINDING, lambda live: live["spec"].update(validationActions=["Warn"])),
    "bound to no namespace": (
        BINDING,
        lambda live: live["spec"].update(
            matchResources={"namespaceSelector": {"matchLabels": {"a": "b"}}}
        ),
    ),
    "bound to another policy": (BINDING, lambda live: live["spec"].update(policyName="another")),
    "without our label": (POLICY, lambda live: live["metadata"].pop("labels")),
    "emptied": ("ConfigMap", lambda live: live.pop("data")),
    "garbled": ("ConfigMap", lambda live: live["data"].update(policies="{")),
}


@pytest.mark.parametrize("name", EDITS)
async def test_edited_object_is_restored(kept: Kept, name: str) -> None:
    kind, edit = EDITS[name]
    async with kept.keeping():
        before = (await kept.settle())[kind]
        await kept.edit(kind, edit)
        await restored(kept, kind, before)


async def test_callback_is_called_after_a_restore(kept: Kept) -> None:
    told: list[bool] = []
    async with kept.keeping(then=lambda: told.append(True)) as watchdog:
        before = (await kept.settle())[POLICY]

        async def has_looked() -> bool:
            return watchdog.has_checked_all

        await until(has_looked)
        assert not told
        await kept.client.request("DELETE", kept.path(POLICY))
        await restored(kept, POLICY, before)
    assert told == [True]


async def test_an_overwritten_ca_is_put_back(kept: Kept) -> None:
    forged = base64.b64encode(kept.ca + kept.ca).decode()
    async with kept.keeping():
        before = (await kept.settle())[MUTATING]
        await kept.edit(
            MUTATING, lambda live: live["webhooks"][1]["clientConfig"].update(caBundle=forged)
        )
        await restored(kept, MUTATING, before)


async def test_restore_keeps_fields_of_other_writers(kept: Kept) -> None:
    async with kept.keeping():
        before = (await kept.settle())[BINDING]
        await kept.edit(BINDING, lambda live: live["metadata"]["labels"].update(team="a"))
        await kept.edit(BINDING, lambda live: live["spec"].update(validationActions=["Audit"]))
        wanted = copy.deepcopy(before)
        wanted["metadata"]["labels"]["team"] = "a"
        await restored(kept, BINDING, wanted)


async def test_restore_event_names_the_changed_field_and_its_manager(kept: Kept) -> None:
    events = f"/api/v1/namespaces/{kept.name}/events"

    async def told() -> list[str]:
        items = json.loads(await kept.client.request("GET", events))["items"]
        return [each["message"] for each in items if each["reason"] == "EnforcementRestored"]

    async with kept.keeping():
        await kept.settle()
        await kept.edit(POLICY, lambda live: live["spec"].update(failurePolicy="Ignore"))
        await until(told)
    [message] = await told()
    assert message.startswith(f"Somebody touched {POLICY} {kept.name}: spec.failurePolicy")
    assert "kubectl-edit at 2" in message


async def test_the_config_map_that_is_put_back_belongs_to_helm_as_before(kept: Kept) -> None:
    kept.marks = {"meta.helm.sh/release-name": "r", "meta.helm.sh/release-namespace": "n"}
    await kept.write()
    async with kept.keeping():
        before = (await kept.settle())["ConfigMap"]
        await kept.client.request("DELETE", kept.map_path)
        await restored(kept, "ConfigMap", before)
    meta = (await kept.find("ConfigMap"))["metadata"]
    assert meta["annotations"] == kept.marks
    assert {each["manager"] for each in meta["managedFields"]} == {"helm"}


# --- no other object is written ---


async def test_unchanged_objects_are_not_written(kept: Kept) -> None:
    async with kept.keeping():
        before = await kept.settle()
    counting = Counting(kept.client)
    async with kept.keeping(counting), kept.keeping(counting):
        for kind in KINDS:
            looks = counting.looks(kept.path(kind))

            async def looked(path: str = kept.path(kind), looks: int = looks) -> bool:
                return counting.looks(path) > looks + 4

            await until(looked)
    assert counting.writes == []
    for kind in KINDS:
        version = (await kept.find(kind))["metadata"]["resourceVersion"]
        assert version == before[kind]["metadata"]["resourceVersion"]


async def write_live_documents(kept: Kept) -> None:
    """Write documents that have all defaults of the API server."""
    async with kept.keeping():
        live = await kept.settle()
    kept.documents = [
        {key: live[kind][key] for key in ("apiVersion", "kind", content_field(kind))}
        | {"metadata": desired_metadata(live[kind])}
        for kind in PATHS
    ]
    await kept.write()


@pytest.mark.parametrize("is_new", [False, True])
async def test_documents_with_all_defaults_need_no_dry_run(kept: Kept, is_new: bool) -> None:
    await write_live_documents(kept)
    for kind in PATHS if is_new else ():
        await kept.client.request("DELETE", kept.path(kind))
    counting = Counting(kept.client)
    async with kept.keeping(counting) as watchdog:

        async def has_looked() -> bool:
            return watchdog.has_checked_all

        await until(has_looked)
        await kept.settle()
    assert counting.dry_runs == []
    # A new object denies only after the proof that a replica is reached; the policy stays as it is.
    assert len(counting.writes) == (len(PATHS) + len(PATHS) - 1) * is_new


async def test_another_ca_needs_no_dry_run(kept: Kept) -> None:
    await write_live_documents(kept)
    counting, hooks = Counting(kept.client), [kept.path(MUTATING), kept.path(VALIDATING)]
    kept.ca += b"\n"

    async def is_written() -> bool:
        return len(counting.writes) >= len(hooks)

    async with kept.keeping(counting):
        await until(is_written)
    assert counting.dry_runs == []
    assert [path for _, path in counting.writes] == hooks


async def test_replicas_do_not_fight(kept: Kept) -> None:
    counting = Counting(kept.client)
    async with kept.keeping(counting), kept.keeping(counting):
        before = await kept.settle()
        await kept.edit(POLICY, lambda live: live["spec"].update(failurePolicy="Ignore"))
        await kept.client.request("DELETE", kept.path(BINDING))
        for kind in (POLICY, BINDING):
            await restored(kept, kind, before[kind])
        looks, writes = counting.looks(kept.map_path), 0

        async def swept() -> bool:
            return counting.looks(kept.map_path) > looks + 8

        writes = len(counting.writes)
        await until(swept)
        assert len(counting.writes) - writes <= 2  # requests under way when the first was seen


async def test_refused_document_does_not_prevent_the_restore_of_others(
    kept: Kept,
) -> None:
    async with kept.keeping():
        before = (await kept.settle())[BINDING]
        kept.documents[2]["spec"]["validations"][0]["expression"] = "no such thing"
        await kept.write()
        await kept.client.request("DELETE", kept.path(BINDING))
        await restored(kept, BINDING, before)


async def test_object_with_the_dry_run_name_does_not_affect_the_webhooks(kept: Kept) -> None:
    """An object with the dry-run name must not influence the desired state."""
    async with kept.keeping():
        before = (await kept.settle())[MUTATING]
    taken = copy.deepcopy(kept.documents[0])
    taken["metadata"]["name"] = "fairgate-normal-form"
    taken["webhooks"][0]["matchConditions"] = [{"name": "never", "expression": "false"}]
    path = kept.path(MUTATING).replace(kept.name, "fairgate-normal-form")
    await kept.client.request("POST", PATHS[MUTATING], body=taken)
    counting = Counting(kept.client)
    try:
        async with kept.keeping(counting):

            async def looked() -> bool:
                return counting.looks(kept.path(MUTATING)) > 3

            await until(looked)
            assert contents(await kept.find(MUTATING)) == contents(before)
    finally:
        await kept.client.request("DELETE", path)


# --- a new installation ---


async def test_enforcement_is_weakened_until_the_api_server_reaches_a_replica(kept: Kept) -> None:
    reached = False
    had_looked: list[bool] = []

    async def unreached() -> str:
        had_looked.append(watchdog.has_checked_all)
        return "" if reached else "no answer"

    async with kept.keeping(unreachable_reason=unreached) as watchdog:

        async def tried() -> bool:
            return len(had_looked) > 3

        await until(tried)
        # The first proof comes before readiness, so that the API server has loaded the objects by
        # then. The later ones come after it: only a replica that is ready is reached.
        assert had_looked[0] is False
        assert all(had_looked[1:])
        assert await weakened(kept)
        assert not watchdog.is_applied
        reached = True

        async def applied() -> bool:
            return watchdog.is_applied

        await until(applied)
        assert not await weakened(kept)
        await kept.settle()
        last = len(had_looked)
        await kept.edit(BINDING, lambda live: live["spec"].update(validationActions=["Warn"]))
        await kept.settle()
    assert len(had_looked) == last  # a proof is needed once


async def test_replica_that_starts_later_does_not_weaken_enforcement(kept: Kept) -> None:
    async def unreached() -> str:
        return "no answer"

    async with kept.keeping():
        before = await kept.settle()
        await kept.edit(MUTATING, first(MUTATING, lambda w: w.update(failurePolicy="Ignore")))
    async with kept.keeping(unreachable_reason=unreached):
        await until(lambda: is_back(kept, MUTATING, before[MUTATING]))
        assert all([await is_back(kept, kind, before[kind]) for kind in KINDS])


async def test_reachability_is_not_tested_in_mode_observe(kept: Kept) -> None:
    kept.observes = True

    async def forbidden() -> str:
        raise AssertionError

    async with kept.keeping(unreachable_reason=forbidden):
        await kept.settle()
        assert await weakened(kept)
    assert not kept.guarded.restores


async def test_a_change_of_mode_is_not_applied_before_all_objects_are_written(kept: Kept) -> None:
    kept.observes = True
    async with kept.keeping() as watchdog:

        async def applied() -> bool:
            return watchdog.is_applied

        await until(applied)
        kept.observes = False
        assert not watchdog.is_applied
        await until(applied)
        assert not await weakened(kept)


async def test_a_document_that_cannot_be_written_does_not_stop_the_canary(kept: Kept) -> None:
    kept.documents[2]["spec"]["validations"] = [{"expression": "not CEL"}]
    await kept.write()
    async with kept.keeping() as watchdog:

        async def applied() -> bool:
            return watchdog.is_applied

        await until(applied)


async def test_mode_of_the_config_map_is_reported_with_each_change(kept: Kept) -> None:
    told: list[Mode] = []
    async with kept.keeping(default_mode=told.append):
        await kept.settle()
        assert told == [Mode.ENFORCE]
        query = [("fieldManager", "helm")]
        changed = {**await kept.find("ConfigMap"), "data": {**kept.data(), "mode": "Observe"}}
        await kept.client.request("PUT", kept.map_path, query=query, body=changed)

        async def heard() -> bool:
            return told[-1] is Mode.OBSERVE

        await until(heard)


async def weakened(kept: Kept) -> bool:
    hooks = (await kept.find(MUTATING))["webhooks"] + (await kept.find(VALIDATING))["webhooks"]
    actions = (await kept.find(BINDING))["spec"]["validationActions"]
    return {w["failurePolicy"] for w in hooks} == {"Ignore"} and actions == ["Audit"]


# --- Observe mode ---


async def test_observing_takes_the_teeth_at_once_and_gives_them_back(kept: Kept) -> None:
    def teeth(objects: dict[str, Any]) -> list[Any]:
        hooks = objects[MUTATING]["webhooks"] + objects[VALIDATING]["webhooks"]
        actions = objects[BINDING]["spec"]["validationActions"]
        return [*(each["failurePolicy"] for each in hooks), actions]

    async def shows(wanted: list[Any]) -> None:
        async def does() -> bool:
            return teeth({kind: await kept.find(kind) for kind in PATHS}) == wanted

        began = time.monotonic()
        await until(does)
        print(f"mode applied after {time.monotonic() - began:.3f} s")

    async with kept.keeping():
        before = await kept.settle()
        kept.observes = True
        await shows(["Ignore", "Ignore", "Ignore", ["Audit"]])
        kept.observes = False
        await shows(["Fail", "Fail", "Fail", ["Deny"]])
        assert all([await is_back(kept, kind, before[kind]) for kind in KINDS])
    assert not kept.guarded.restores


async def test_objects_deleted_in_mode_observe_are_restored_after_it_ends(kept: Kept) -> None:
    counting = Counting(kept.client)
    async with kept.keeping(counting):
        before = await kept.settle()
        kept.observes = True

        async def observing() -> bool:
            spec = (await kept.find(BINDING))["spec"]
            return bool(spec["validationActions"] == ["Audit"])

        await until(observing)
        for kind in KINDS:
            await kept.client.request("DELETE", kept.path(kind))
        looks = {kind: counting.looks(kept.path(kind)) for kind in KINDS}

        async def looked() -> bool:
            return all(counting.looks(kept.path(kind)) > looks[kind] + 3 for kind in KINDS)

        await until(looked)
        assert [await kept.get(kept.path(kind)) for kind in KINDS] == [None] * 5
        kept.observes = False
        for kind in KINDS:
            await restored(kept, kind, before[kind])


@pytest.mark.parametrize("kind", KINDS)
async def test_object_deleted_during_a_restore_is_not_created_again(kept: Kept, kind: str) -> None:
    async with kept.keeping():
        live = (await kept.settle())[kind]
    wanted = copy.deepcopy(live)
    wanted["metadata"] = {"name": live["metadata"]["name"], "labels": {"a": "b"}, "annotations": {}}
    await kept.client.request("DELETE", kept.path(kind))
    with pytest.raises(ClusterRefused) as caught:
        await Restorer(kept.client, "fairgate-webhook").restore(kept.path(kind), live, wanted)
    assert caught.value.status == 409
    assert await kept.get(kept.path(kind)) is None


async def test_an_edit_is_undone_while_observing(kept: Kept) -> None:
    async with kept.keeping():
        await kept.settle()
        kept.observes = True

        async def observing() -> bool:
            spec = (await kept.find(BINDING))["spec"]
            return bool(spec["validationActions"] == ["Audit"])

        await until(observing)
        before = await kept.find(BINDING)
        await kept.edit(BINDING, lambda live: live["spec"].update(policyName="another"))
        await restored(kept, BINDING, before)


async def test_watchdog_stops_on_request_right_after_a_change(kept: Kept) -> None:
    async with asyncio.timeout(60), kept.keeping():
        await kept.settle()
        await kept.edit(POLICY, lambda policy: policy["spec"].update(failurePolicy="Ignore"))
