"""F5: webhook configurations and policies are deleted under load."""

from __future__ import annotations

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor

from app.core.errors import ClusterError
from app.devcluster.kubectl import Kubectl
from app.kube.enforcement_spec import Ref
from tests.faults.creators import Creators
from tests.faults.fault_cluster import Rig
from tests.support.cluster_driver import GATE, Object, gates, name_of, next_second, pod

WORKERS = 2
PACE = 0.25
KINDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
HOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
EITHER = [
    *(Ref(kind, "fairgate") for kind in HOOKS),
    *(Ref(kind, name) for kind in KINDS for name in ("fairgate-create", "fairgate-update")),
]
BOTH = [
    *(Ref(kind, "fairgate") for kind in HOOKS),
    *(Ref(KINDS[1], name) for name in ("fairgate-create", "fairgate-update")),
]
PROVEN = "enforcement is proven"
PAST = "a pod got past the gate without a release"
PREY = "prey"
"""A pod that stays held. A user tries to remove its gate."""


def is_there(rig: Rig, ref: Ref) -> bool:
    with rig.admin() as api:
        return api.find(ref.path) is not None


def delete(rig: Rig, *refs: Ref) -> float:
    """Delete these objects at the same time; return the time of the last deletion."""

    def one(ref: Ref) -> None:
        with rig.admin() as api:
            api.call("DELETE", ref.path)

    with ThreadPoolExecutor(len(refs)) as pool:
        list(pool.map(one, refs))
    return time.monotonic()


def proofs(rig: Rig) -> int:
    """Return how often the canaries have proven enforcement."""
    return sum(len(each.lines(PROVEN)) for each in rig.of("webhook"))


def steal(thief: Kubectl, namespace: str) -> str:
    """Try to remove the gate; return the output or the error."""
    patch = json.dumps([{"op": "remove", "path": "/spec/schedulingGates"}])
    try:
        return thief.run("patch", "pod", PREY, "-n", namespace, "--type=json", "-p", patch)
    except ClusterError as error:
        return str(error)


def test_f05_with_either_layer_deleted_the_other_holds(rig: Rig) -> None:
    namespace = rig.stage.namespace("f05-either")
    rig.start("controller")
    rig.stage.apply(namespace, pod(PREY, 999))
    thief = rig.stage.as_user("thief", namespace)
    stolen: list[str] = []
    with Creators(rig.cluster.kubeconfig, namespace, workers=WORKERS, pace=PACE) as load:
        for ref in EITHER:
            before = proofs(rig)
            gone_at = delete(rig, ref)
            rig.until(f"{ref} is back", lambda r=ref: is_there(rig, r))  # type: ignore[misc]
            back = time.monotonic() - gone_at

            def proven(ref: Ref = ref, before: int = before) -> bool:
                said = steal(thief, namespace)
                if "Fairgate: only Fairgate removes the gate" not in said:
                    stolen.append(f"{ref}: {said}")
                return proofs(rig) > before

            rig.until(f"the effect of {ref} is proven", proven)
            rig.took(f"{ref} back", back)
            rig.took(f"{ref} proven", time.monotonic() - gone_at)
    rig.took("creates", len(load.tally.created))
    rig.took("creates refused", len(load.tally.refused))
    assert load.tally.ungated == []
    assert stolen == []
    assert {each.said for each in load.tally.refused if "Fairgate" not in each.said} == set()
    [prey] = [each for each in rig.stage.pods(namespace) if name_of(each) == PREY]
    assert GATE in gates(prey)


def test_f05_every_pod_that_bypasses_both_layers_is_reported_once(rig: Rig) -> None:
    """The second deletion is not repaired for a while, so that some pods bypass the gate.

    Each bypass is reported once, also if another leader follows.
    """
    rig.observe("--allow-bypass")
    namespace = rig.stage.namespace("f05-both")
    controller = rig.start("controller")
    [webhook] = rig.of("webhook")
    with Creators(rig.cluster.kubeconfig, namespace, workers=WORKERS, pace=PACE, keep=True) as load:
        tally = load.tally
        rig.until("one is released", lambda: bool(rig.stage.using(namespace)))
        next_second()
        before = proofs(rig)
        delete(rig, *BOTH)
        rig.until("all is proven", lambda: proofs(rig) > before)
        rig.until("both are back", lambda: all(is_there(rig, ref) for ref in BOTH))
        rig.took("slipped through while we looked", len(tally.ungated))
        webhook.stop()
        gone_at = delete(rig, *BOTH)
        enough = len(tally.ungated) + 3
        rig.until("pods slip through", lambda: len(tally.ungated) >= enough)
        before = len(webhook.lines(PROVEN))
        webhook.cont()
        began = time.monotonic()
        rig.until("all is back", lambda: all(is_there(rig, ref) for ref in BOTH))
        rig.took("all back", time.monotonic() - began)
        rig.until("all is proven", lambda: len(webhook.lines(PROVEN)) > before)
        rig.took("all proven", time.monotonic() - began)
    rig.took("slipped through in all", len(tally.ungated))
    assert gone_at < began

    leaders = [controller]

    def reported() -> list[str]:
        return sorted(_pod(line["facts"]) for each in leaders for line in each.lines(PAST))

    def audited() -> list[str]:
        entries = (entry for each in leaders for entry in each.lines())
        return sorted(_pod(entry["facts"]) for entry in entries if entry.get("deed") == "bypassed")

    slipped = {f"{namespace}/{name}" for name in tally.ungated}
    rig.until("what slipped through is in the audit chain", lambda: slipped <= set(audited()))
    assert controller.metric("fairgate_bypassed_pods_total") == len(reported())
    leaders.append(rig.start("controller"))
    controller.kill(signal.SIGTERM)
    rig.leader(other_than=controller)
    report = rig.verdict()
    assert reported() == audited() == sorted(report["bypassed"])


def _pod(facts: Object) -> str:
    return f"{facts['namespace']}/{facts['pod']}"
