"""Releases by hand: the changes, the output and the exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from app.commands.release import command
from app.commands.release.command import release_one
from app.commands.release.console import CommandFailed, ReleaseOptions
from app.commands.release.manual_release import ByHand
from app.commands.release.release_all import release_all
from app.core.errors import ClusterRefused, ClusterUnavailable, InvalidInput
from app.core.kubeconfig import KubeconfigOptions
from app.core.policy import ENFORCE_COMMAND
from app.terminal.output import OutputFormat, OutputOptions
from tests.fakes.fake_api_server import FakeApiServer, held

MINE = "example.com/mine"
GATE = "fairgate.io/queue"


def options(form: OutputFormat = OutputFormat.TABLE, **fields: Any) -> ReleaseOptions:
    usual = ReleaseOptions(None, True, None, KubeconfigOptions(), True, OutputOptions(form))
    return replace(usual, **fields)


def hand(server: FakeApiServer) -> ByHand:
    return ByHand(cast(Any, server))


async def one(
    server: FakeApiServer, name: str = "p", output: OutputFormat = OutputFormat.TABLE
) -> int:
    return await release_one(hand(server), options(output), "space", name, "olga")


async def everything(server: FakeApiServer, form: OutputFormat = OutputFormat.TABLE) -> int:
    return await release_all(hand(server), options(form), "olga", settled_after=0.0)


@pytest.fixture
def server() -> FakeApiServer:
    return FakeApiServer()


def refusing(status: int, *names: str) -> Callable[[str], None]:
    def interfere(name: str) -> None:
        if name in names:
            raise ClusterRefused(f"{name} is refused", status)

    return interfere


async def test_only_the_fairgate_gate_is_removed_and_the_releaser_is_recorded(
    server: FakeApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add(held("p", MINE, "another"))
    assert await one(server) == 0
    assert server.gates("p") == [MINE, "another"]
    assert server.pods["p"]["metadata"]["annotations"] == {"fairgate.io/release": "adopted"}
    told = capsys.readouterr().out
    assert told.startswith("Released pod space/p by hand, as olga.")
    assert f"still carries {MINE}, another" in told
    [event] = server.events
    assert (event["reason"], event["message"]) == ("Released", "by hand, as olga, past its queue")
    assert event["involvedObject"]["uid"] == "uid-p"


async def test_pod_without_annotations_gets_the_release_annotation(server: FakeApiServer) -> None:
    server.add(held("p", annotated=False))
    assert await one(server) == 0
    assert server.pods["p"]["metadata"]["annotations"] == {"fairgate.io/release": "adopted"}


async def test_release_without_permission_is_refused(server: FakeApiServer) -> None:
    server.add(held("p"))
    server.allowed = ()
    with pytest.raises(CommandFailed, match="olga may not release pods of namespace space"):
        await one(server)
    with pytest.raises(CommandFailed, match="pods of every namespace"):
        await everything(server)
    assert (server.patches, server.policy) == ([], None)


async def test_permission_in_one_namespace_does_not_allow_release_of_all(
    server: FakeApiServer,
) -> None:
    server.allowed = ("space",)
    server.add(held("p"))
    with pytest.raises(CommandFailed):
        await everything(server)
    assert await one(server) == 0


async def test_failed_event_is_reported_and_does_not_undo_the_release(
    server: FakeApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add(held("p"))
    server.may_write_events = False
    assert await one(server) == 0
    assert "no event was written" in capsys.readouterr().err
    assert server.gates("p") == []


async def test_a_gate_that_moved_meanwhile_is_found_again(server: FakeApiServer) -> None:
    server.add(held("p", MINE))

    def interfere(name: str) -> None:
        if len(server.patches) == 1:
            server.add(held("p"))

    server.before_patch = interfere
    assert await one(server) == 0
    assert server.gates("p") == []


async def test_new_pod_with_the_same_name_is_not_released(server: FakeApiServer) -> None:
    server.add(held("p"))

    def interfere(name: str) -> None:
        server.pods["p"]["metadata"]["uid"] = "another"

    server.before_patch = interfere
    assert await one(server) == 0
    assert server.gates("p") == [GATE]


async def test_a_release_that_got_no_answer_is_looked_up(
    server: FakeApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add(held("p"))
    server.deaf = 1
    assert await one(server) == 0
    assert len(server.patches) == 1
    assert "Released pod space/p by hand" in capsys.readouterr().out


async def test_release_refused_by_a_policy_is_not_retried(
    server: FakeApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add(held("p"))
    for status in (403, 422):
        server.patches.clear()
        server.before_patch = refusing(status, "p")
        assert await one(server) == 1
        assert len(server.patches) == 1
        assert "pod space/p was not released: p is refused" in capsys.readouterr().err


async def test_release_is_retried_if_the_api_server_is_too_busy(server: FakeApiServer) -> None:
    server.add(held("p"))

    def interfere(name: str) -> None:
        if len(server.patches) < 3:
            raise ClusterRefused("too many requests", 429)

    server.before_patch = interfere
    assert await one(server) == 0
    assert len(server.patches) == 3


async def test_no_answer_at_all_is_exit_code_3(server: FakeApiServer) -> None:
    server.add(held("p"))

    def interfere(name: str) -> None:
        raise ClusterUnavailable("no answer")

    server.before_patch = interfere
    assert await one(server, "p", OutputFormat.JSON) == 3


async def test_all_pods_are_released_page_by_page_and_mode_becomes_observe(
    server: FakeApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add(*(held(f"p{number}") for number in range(7)), held("o", MINE))
    server.add({"metadata": {"name": "free", "namespace": "space", "uid": "f"}, "spec": {}})
    assert await everything(server) == 0
    assert server.policy == {"spec": {"mode": "Observe"}}
    assert {name: server.gates(name) for name in server.pods if name != "free"} == {
        **{f"p{number}": [] for number in range(7)},
        "o": [MINE],
    }
    told = capsys.readouterr().out
    assert told.startswith("Released 8 pods by hand, as olga.\n1 of them carries gates")
    assert ENFORCE_COMMAND in told
    assert "helm uninstall fairgate" in told


async def test_existing_policy_keeps_its_other_fields(server: FakeApiServer) -> None:
    server.policy = {"spec": {"history": "1", "mode": "Enforce"}}
    assert await everything(server) == 0
    assert server.policy == {"spec": {"history": "1", "mode": "Observe"}}


async def test_no_pod_is_released_if_the_policy_cannot_be_changed(server: FakeApiServer) -> None:
    server.add(held("p"))
    server.may_change_policy = False
    with pytest.raises(
        CommandFailed, match="nothing was released: olga may not change Policy default"
    ):
        await everything(server)
    assert server.patches == []


async def test_all_are_released_where_the_resources_are_gone_already(
    server: FakeApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.installed = False
    server.add(held("p"))
    assert await everything(server, OutputFormat.JSON) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["released"], facts["mode"]) == (1, None)


async def test_pods_created_during_the_release_are_released_too(server: FakeApiServer) -> None:
    late = [held("late-1"), held("late-2")]
    server.add(held("p"))
    server.before_list = lambda: server.add(late.pop()) if server.patches and late else None
    assert await everything(server) == 0
    assert sorted(server.pods) == ["late-1", "late-2", "p"]
    assert not any(server.gates(name) for name in server.pods)


async def test_pod_that_cannot_be_released_delays_no_other_pod(
    server: FakeApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add(*(held(f"p{number}") for number in range(5)))
    server.before_patch = refusing(403, "p1")
    assert await everything(server, OutputFormat.JSON) == 1
    told = capsys.readouterr()
    facts = json.loads(told.out)
    assert facts["released"] == 4
    assert facts["failed"] == [{"namespace": "space", "pod": "p1", "why": "p1 is refused"}]
    assert facts["stillHeld"] == 1
    assert "pod space/p1 was not released: p1 is refused" in told.err


async def test_an_endless_stream_of_held_pods_ends_in_a_no(
    server: FakeApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = iter(range(1000))
    server.before_list = lambda: server.add(held(f"p{next(numbers)}"))
    assert await everything(server) == 1
    assert "came to be held meanwhile" in capsys.readouterr().err


async def test_progress_is_reported_if_the_api_server_becomes_unavailable(
    server: FakeApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add(held("p"))

    def gone() -> None:
        if server.patches:
            raise ClusterUnavailable("no answer")

    server.before_list = gone
    with pytest.raises(ClusterUnavailable):
        await everything(server)
    assert "stopped after 1 pod; run it again to go on" in capsys.readouterr().err


# --- arguments ---


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"pod": None, "everything": False}, "Name one pod to release, or say --all"),
        ({"pod": "p", "everything": True}, "Name one pod to release, or say --all"),
        *(
            ({"pod": name, "everything": False}, f"'{re.escape(name)}' is not the name of a pod")
            for name in ("", ".", "..", "train 0", "Train", "a" * 254)
        ),
        ({"namespace": "space"}, "--all means every namespace"),
        ({"yes": False}, "add --yes"),
        (
            {"kubeconfig": KubeconfigOptions("/nowhere/config")},
            "There is no kubeconfig /nowhere/config",
        ),
    ],
)
def test_wrong_arguments_are_refused_before_any_request(
    fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        command.run(options(**fields))


def claimed(name: str, *finalizers: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "space", "uid": f"uid-{name}"}
    return {"metadata": {**meta, "finalizers": list(finalizers)}}


async def test_releasing_everything_removes_our_finalizers_and_no_others(
    server: FakeApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.claims = {
        "c": claimed("c", "example.com/mine", "fairgate.io/claim-in-use"),
        "d": claimed("d", "example.com/mine"),
    }
    assert await everything(server) == 0
    left = {name: claim["metadata"]["finalizers"] for name, claim in server.claims.items()}
    assert left == {"c": ["example.com/mine"], "d": ["example.com/mine"]}
    assert "finalizer from 1 resource claims" in capsys.readouterr().out


async def test_a_server_without_resource_claims_has_no_finalizers(server: FakeApiServer) -> None:
    server.claims = None
    assert await everything(server) == 0


async def test_finalizers_that_cannot_be_removed_are_reported(
    server: FakeApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.claims = {"c": claimed("c", "fairgate.io/claim-in-use")}
    server.may_change_claims = False
    assert await everything(server) == 1
    assert "allow list and patch on resourceclaims" in capsys.readouterr().err


async def test_manually_released_pod_keeps_its_claims(
    server: FakeApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.claims = {"c": claimed("c"), "p-d-x": claimed("p-d-x")}
    pod = held("p")
    pod["spec"]["resourceClaims"] = [
        {"name": "c", "resourceClaimName": "c"},
        {"name": "d", "resourceClaimTemplateName": "t"},
        {"name": "e", "resourceClaimName": "missing"},
    ]
    pod["status"] = {"resourceClaimStatuses": [{"name": "d", "resourceClaimName": "p-d-x"}]}
    server.add(pod)
    assert await one(server) == 0
    written = server.pods["p"]["metadata"]["annotations"]["fairgate.io/claims"]
    assert {name: each["uid"] for name, each in json.loads(written).items()} == {
        "c": "uid-c",
        "p-d-x": "uid-p-d-x",
    }
    for name in ("c", "p-d-x"):
        assert server.claims[name]["metadata"]["finalizers"] == ["fairgate.io/claim-in-use"]
    assert "resource claim missing" in capsys.readouterr().err
