"""Rows 25 and 26: the webhook's own port, and malformed bodies, clients and pods."""

from __future__ import annotations

import base64
import copy
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.attacks.attack_cluster import RED, TOO_MANY, AttackEnvironment, body, layer_of, path
from tests.e2e.attacks.attack_namespaces import only, yard
from tests.e2e.attacks.outcomes import NOT_ITS_LAYER, Outcomes
from tests.e2e.attacks.webhook_port import JSON, Port, review, written
from tests.support.cluster_driver import GATE, GPU, Object, Stage, gates, until
from tests.support.personas import Refused

LISTENS = ("everything", "webhook")
"""The modes in which a webhook runs."""

REPLAYS = 100
HEADERS = (400, 431)
"""The limit of the HTTP parser, lower than Fairgate's own."""

NOBODY = "no webhook runs in this mode"


# --- row 25 ---


def test_25_strangers_get_no_word_out_of_the_webhook(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    port, attack = Port(env), "post reviews straight to the webhook"
    if env.mode not in LISTENS:
        nobody_listens(port)
        outcomes(25, env.mode, attack, NOT_ITS_LAYER, NOBODY)
        return
    for context in (port.bare, port.wrong):
        with pytest.raises(OSError, match=r".") as caught:
            port.post(context, written(review()))
        assert not isinstance(caught.value, ConnectionRefusedError)
    assert port.post(port.stolen, written(review()))[0] == 200
    saw = "the handshake fails without the API server's own client certificate"
    outcomes(25, env.mode, attack, "T", saw)


def nobody_listens(port: Port) -> None:
    with pytest.raises(ConnectionRefusedError):
        port.post(port.stolen, written(review()))


@only(*LISTENS)
def test_25_a_replayed_review_has_no_effect(env: AttackEnvironment, outcomes: Outcomes) -> None:
    """The attacker has the API server's key."""
    port, before = Port(env), env.admin.get(path(RED))["items"]
    answers = set()
    with port.connected(port.stolen) as connection:
        for _ in range(REPLAYS):
            connection.request("POST", "/admit", written(review()), JSON)
            answers.add(connection.getresponse().read())
    [answer] = answers
    assert GATE in patched(answer)
    assert len(env.admin.get(path(RED))["items"]) == len(before)
    assert not env.exists("replayed")
    saw = "the same answer every time, and nothing else"
    outcomes(25, env.mode, "replay one a hundred times, with a stolen certificate", "D", saw)


def patched(answer: bytes) -> str:
    """Return the patch in an answer, "" if absent."""
    return base64.b64decode(json.loads(answer)["response"].get("patch", "")).decode()


# --- row 26 ---


def asking(amount: Any) -> Object:
    item = body("odd")
    item["spec"]["containers"][0]["resources"]["limits"][GPU] = amount
    return item


def labelled(key: str, value: str) -> Object:
    item = body("odd", TOO_MANY)
    item["metadata"]["labels"] = {key: value}
    return item


def many_labels() -> Object:
    item = body("odd", TOO_MANY)
    item["metadata"]["labels"] = {f"fairgate.io/{number}": "x" for number in range(5000)}
    return item


DEEP = 200_000
BODIES: dict[str, tuple[bytes, tuple[int, ...]]] = {
    "20 MiB": (b" " * (20 << 20), (413,)),
    "20 MiB of a review": (written(review(body("x" * (20 << 20)))), (200, 413)),
    "deep lists": (b"[" * DEEP, (400,)),
    "deep objects": (b'{"request":' * DEEP, (400,)),
    "deep in a review": (
        written(review()).replace(b'"oldObject": null', b'"oldObject": ' + b"[" * DEEP),
        (200, 400),
    ),
    "NaN": (written(review(asking(float("nan")))), (200, 400)),
    "infinity": (written(review(asking(float("inf")))), (200, 400)),
    "a half surrogate pair": (written(review(labelled("a\ud800", "\udfff"))), (200, 400)),
    "bytes that are no text": (b'{"request": {"uid": "\xff\xfe"}}', (400,)),
    "a huge quantity": (written(review(asking("9" * 4000))), (200,)),
    "a huge exponent": (written(review(asking("1e999999999"))), (200,)),
    "a negative quantity": (written(review(asking("-1"))), (200,)),
    "a quantity that is none": (written(review(asking({"a": []}))), (200, 400)),
    "strange labels": (written(review(labelled("\0/~1" * 99, "\n"))), (200,)),
    "thousands of labels": (written(review(many_labels())), (200,)),
    "nothing": (b"", (400,)),
    "null": (b"null", (400,)),
    "no object": (written(review(None, object=None)), (200,)),
}


def test_26_malformed_body_neither_crashes_nor_bypasses_the_webhook(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    attack = "20 MiB, deep JSON, NaN, surrogates, huge quantities, strange labels"
    port = Port(env)
    if env.mode not in LISTENS:
        nobody_listens(port)
        outcomes(26, env.mode, attack, NOT_ITS_LAYER, NOBODY)
        return
    before = env.cluster.details().pids["fairgate-webhook"]
    for what, (data, codes) in BODIES.items():
        code, answer = port.post(port.stolen, data)
        assert code in codes, f"{what}: {code} {answer[:200]!r}"
        if code == 200:
            said = json.loads(answer)["response"]
            assert not said["allowed"] or GATE in patched(answer), what
    plain = {"content-type": "text/plain"}
    assert port.post(port.stolen, b"{}", headers=plain)[0] == 415
    assert port.post(port.stolen, b"", method="GET")[0] == 405
    assert port.post(port.stolen, b"", at="/admit/../metrics")[0] == 404
    assert port.post(port.stolen, b"{}", headers={**JSON, "x": "y" * (100 << 10)})[0] in HEADERS
    assert env.cluster.details().pids["fairgate-webhook"] == before
    outcomes(26, env.mode, attack, "D", "400, 413, 431 or a refusal; never a 5xx")


def test_26_slow_clients_of_the_webhook_do_not_block_creates(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    attack = "hundreds of mute, bare and slow connections"
    port = Port(env)
    if env.mode not in LISTENS:
        nobody_listens(port)
        outcomes(26, env.mode, attack, NOT_ITS_LAYER, NOBODY)
        return
    with port.crowded(mute=400, bare=100, slow=40):
        for _ in range(5):
            item = env.stored(body(env.name(), TOO_MANY))
            assert item is not None
            assert gates(item) == [GATE]
    outcomes(26, env.mode, attack, "T", "pods are created and held meanwhile")


ODD: dict[str, Object] = {
    "too many devices to count": asking("9223372036854775808"),
    "1e30 devices": asking("1e30"),
    "a large exponent": asking("1e9999"),
    "half a device": asking("0.5"),
    "less than none": asking("-1"),
    "no number": asking("many"),
    "NaN": asking(float("nan")),
    "a strange label": labelled("fairgate.io/\0", "\ud800"),
    "a long label": labelled("fairgate.io/tenant", "x" * 10_000),
    "thousands of labels": many_labels(),
}


@pytest.mark.parametrize("what", ODD)
def test_26_malformed_pods_are_refused_or_held(
    env: AttackEnvironment, outcomes: Outcomes, what: str
) -> None:
    item = copy.deepcopy(ODD[what])
    name = item["metadata"]["name"] = env.name("odd")
    code, said = sent(env, item)
    if said is None:
        assert env.mode in LISTENS
        assert env.is_held(name)
        outcomes(26, env.mode, "odd pods", "D", f"{what}: held")
        return
    assert not env.exists(name)
    # If no webhook answers, the API server returns 500. That is the outage itself.
    assert 400 <= code < 500 or layer_of(said) == "outage"
    outcomes(26, env.mode, "odd pods", layer_of(said), f"{what}: {code}")


@only("policies")
def test_26_unparseable_pod_does_not_block_other_pods(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    """The webhook would have refused this pod. If the webhook is down, the leader receives it."""
    ours = yard(env, stage)
    odd = body("odd")
    odd["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "1e9999"
    assert ours.make(odd) is None
    assert ours.make(body("honest")) is None
    until("others go on", lambda: stage.running(ours.namespace) == ["honest"])
    assert ours.held() == {"odd"}
    outcomes(26, env.mode, "odd pods", "D", "1e9999 cpu: held, and other pods are released")


@only("everything")
def test_26_deeply_nested_fields_do_not_block_other_pods(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    """The API server stores 10 000 levels, and Fairgate reads every pod and claim."""
    ours = yard(env, stage)
    fields: Object = {}
    for _ in range(5_000):
        fields = {"f:a": fields}
    entry = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    written = {"metadata": {"managedFields": [{**entry, "fieldsV1": {"f:spec": fields}}]}}
    for name, gpus in (("plain", 0), ("large", 1)):
        assert ours.make(body(name, gpus)) is None
        at = path(ours.namespace, name)
        with deep_json():
            assert env.mallory.refused("PATCH", at, written) is None
            assert ours.make(body(f"honest-{name}")) is None
            until("others go on", lambda n=f"honest-{name}": n in stage.running(ours.namespace))  # type: ignore[misc]
            stage.delete(ours.namespace, name)
    outcomes(26, env.mode, "odd pods", "D", "5 000 levels of fields: other pods are released")


@contextmanager
def deep_json() -> Iterator[None]:
    """Let this process read and write deeply nested JSON."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def sent(env: AttackEnvironment, item: Object) -> tuple[int, str | None]:
    """Create a pod as Mallory; return the status and the message of the refusal."""
    try:
        env.mallory.call("POST", path(RED), item)
    except Refused as error:
        return error.status, error.message
    return 201, None
