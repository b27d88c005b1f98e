"""What `fairgate check` concludes from the answers of the API server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import yaml

from app.commands.check.command import CheckOptions, CheckResult, InstallationCheck, is_sound
from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.kubeconfig import KubeconfigOptions
from app.core.policy import ENFORCE_COMMAND
from app.core.well_known import GATE
from app.kube.enforcement_probes import SCHEDULER
from app.kube.enforcement_spec import API_VERSION
from app.terminal.output import OutputOptions

DENIED = ClusterRefused("422 ValidatingAdmissionPolicy 'fairgate-x' denied request: no", 422)
OBJECTS = yaml.safe_dump_all(
    [
        {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, at: contents}
        for kind, name, at, contents in (
            ("MutatingWebhookConfiguration", "fairgate", "webhooks", []),
            ("ValidatingAdmissionPolicyBinding", "fairgate-pods", "spec", {}),
        )
    ]
)
NOT_FOUND = ClusterRefused("404", 404)


class Installation:
    """Answers like an API server with Fairgate. The leader renews its Lease at every look."""

    def __init__(self) -> None:
        self.policy: dict[str, Any] | None = None
        self.config: dict[str, str] | None = {"objects": OBJECTS}
        self.missing: set[str] = set()
        self.holder = "controller-1"
        self.renews = True
        self.gates = [GATE]
        self.outages = 0
        self.caller_may_release = False
        self.forbidden = ""
        self.refusals = 10**6
        self.quota = False
        self.answer: bytes | None = None
        self._looks = 0

    async def request(self, method: str, path: str, *, body: Any = None, **_: Any) -> bytes:
        if self.outages:
            self.outages -= 1
            raise ClusterUnavailable("no answer")
        if self.answer is not None:
            return self.answer
        if self.forbidden and self.forbidden in path and self.refusals:
            self.refusals -= 1
            message = f'403 x is forbidden: User "eve" cannot get resource "{self.forbidden}"'
            raise ClusterRefused(message, 403)
        if path.endswith("/policies/default"):
            return self._answer(self.policy)
        if "/configmaps/" in path:
            return self._answer(None if self.config is None else {"data": self.config})
        if "/leases/" in path:
            return self._lease()
        if "/admissionregistration.k8s.io/" in path:
            return self._answer(None if path.rpartition("/")[2] in self.missing else {})
        if path.endswith("/selfsubjectaccessreviews"):
            return self._answer({"status": {"allowed": self.caller_may_release}})
        if self.caller_may_release and method == "PATCH":
            return self._answer({})
        if method == "PATCH" or (
            method == "POST" and body["spec"].get("schedulerName") == SCHEDULER
        ):
            raise DENIED
        if self.quota:
            raise ClusterRefused('403 pods "x" is forbidden: exceeded quota: q', 403)
        gates = [{"name": name} for name in self.gates]
        return self._answer({"metadata": {"uid": "u"}, "spec": {"schedulingGates": gates}})

    def _lease(self) -> bytes:
        self._looks += self.renews
        spec = {"holderIdentity": self.holder, "leaseDurationSeconds": 1}
        return self._answer({"metadata": {"resourceVersion": str(self._looks)}, "spec": spec})

    def _answer(self, document: dict[str, Any] | None) -> bytes:
        if document is None:
            raise NOT_FOUND
        return json.dumps(document).encode()


async def results_of(api: Installation, wait: float = 0.0) -> dict[str, CheckResult]:
    options = CheckOptions(
        KubeconfigOptions(), "fairgate-system", ("nvidia.com/gpu",), wait, OutputOptions()
    )
    check = InstallationCheck(api, options, pause=0.001)  # type: ignore[arg-type]
    return {each.name: each for each in await check.run()}


async def test_a_sound_installation_passes_every_check() -> None:
    results = await results_of(Installation())
    assert list(results) == ["mode", "objects", "hold", "create", "release", "leader"]
    assert all(each.passed for each in results.values())
    assert results["create"].message.endswith("policy fairgate-x")
    assert results["leader"].message == "controller-1 leads"


async def test_a_missing_object_of_enforcement_fails_the_check_and_is_named() -> None:
    api = Installation()
    api.missing = {"fairgate-pods"}
    found = (await results_of(api))["objects"]
    assert found.passed is False
    assert found.message.startswith("ValidatingAdmissionPolicyBinding fairgate-pods does not exist")
    api.missing.add("fairgate")
    assert " fairgate-pods do not exist" in (await results_of(api))["objects"].message


async def test_pod_that_is_not_held_fails_its_check_and_other_checks_continue() -> None:
    api = Installation()
    api.gates = []
    results = await results_of(api)
    assert not results["hold"].passed
    assert "is not held" in results["hold"].message
    assert results["leader"].passed


async def test_protection_of_the_gate_is_not_judged_by_a_caller_that_may_release() -> None:
    api = Installation()
    api.caller_may_release = True
    release = (await results_of(api))["release"]
    assert release.passed is None
    assert release.message.startswith("not tested: you may remove the gate of a pod")


@pytest.mark.parametrize("where", ["policy", "config"])
async def test_in_mode_observe_only_the_leader_is_tested(where: str) -> None:
    api = Installation()
    api.gates = []
    if where == "policy":
        api.policy = {"spec": {"mode": "Observe"}}
    else:
        api.config = {"mode": "Observe", "objects": OBJECTS}
        api.missing = {"fairgate-pods"}
    results = await results_of(api)
    assert list(results) == ["mode", "leader"]
    assert "Observe" in results["mode"].message
    assert results["mode"].message.endswith(ENFORCE_COMMAND) is (where == "policy")


async def test_mode_of_the_policy_overrides_the_mode_of_the_installation() -> None:
    api = Installation()
    api.policy, api.config = {"spec": {"mode": "Enforce"}}, {"mode": "Observe", "objects": OBJECTS}
    assert (await results_of(api))["mode"].message == "Enforce"


async def test_a_namespace_without_fairgate_is_named() -> None:
    api = Installation()
    api.config = None
    mode = (await results_of(api))["mode"]
    assert not mode.passed
    assert "there is no ConfigMap fairgate-system/fairgate-enforcement" in mode.message


@pytest.mark.parametrize(("holder", "renews"), [("", True), ("dead", False)])
async def test_lease_without_holder_or_renewal_has_no_leader(holder: str, renews: bool) -> None:
    api = Installation()
    api.holder, api.renews = holder, renews
    leader = (await results_of(api))["leader"]
    assert not leader.passed
    assert "no controller leads, so no pod is released" in leader.message


@pytest.mark.parametrize(
    ("forbidden", "skipped"),
    [
        ("configmaps", ["mode", "objects", "hold", "create", "release"]),
        ("mutatingwebhookconfigurations", ["objects"]),
        ("/pods", ["hold", "create", "release"]),
        ("leases", ["leader"]),
        ("/", ["mode", "objects", "hold", "create", "release", "leader"]),
    ],
)
async def test_checks_that_rights_do_not_allow_are_skipped(
    forbidden: str, skipped: list[str]
) -> None:
    api = Installation()
    api.forbidden = forbidden
    results = await results_of(api)
    untested = {name: each.message for name, each in results.items() if each.passed is None}
    assert list(untested) == skipped
    assert all(message.startswith("not tested: ") for message in untested.values())
    assert is_sound(list(results.values())) is (len(skipped) < len(results))


async def test_a_pod_that_an_admission_rule_forbids_fails_the_check() -> None:
    api = Installation()
    api.quota = True
    results = await results_of(api)
    assert results["hold"].passed is False
    assert not is_sound(list(results.values()))


async def test_a_check_is_repeated_until_it_passes() -> None:
    api = Installation()
    api.outages = 5
    assert all(each.passed for each in (await results_of(api, wait=60.0)).values())


@pytest.mark.parametrize("answer", [b"<html>login</html>", b"[]", b"null", b'{"spec": "x"}'])
async def test_another_server_than_an_api_server_is_named_and_not_a_defect(answer: bytes) -> None:
    api = Installation()
    api.answer = answer
    mode = (await results_of(api))["mode"]
    assert mode.passed is False
    assert mode.message.startswith("The API server answered with something else than Kubernetes")


async def test_a_check_does_not_wait_for_a_right_that_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.commands.check.command.RIGHTS_SECONDS", 0.0)
    api = Installation()
    api.forbidden = "leases"
    leader = (await asyncio.wait_for(results_of(api, wait=600.0), 60.0))["leader"]
    assert leader.passed is None


async def test_a_right_of_a_new_role_may_come_a_moment_later() -> None:
    api = Installation()
    api.forbidden, api.refusals = "leases", 3
    assert (await results_of(api, wait=60.0))["leader"].passed


async def test_a_long_check_shows_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("app.commands.check.command.PATIENCE", 0.0)
    api = Installation()
    api.outages = 5
    await results_of(api, wait=60.0)
    assert capsys.readouterr().err.startswith("fairgate: still testing mode")
