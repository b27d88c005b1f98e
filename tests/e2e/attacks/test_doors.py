"""Rows 25, 26 and 29 to 31: the doors besides the API server, and what is read afterwards."""

from __future__ import annotations

import base64
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import redis
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from app.core.effects import Enqueue, PodRef
from app.core.errors import StoreEmptied, StoreUnavailable
from app.core.model import TenantName, Uid, UserName
from app.dev.processes import Processes
from app.dev.redis_server import start_redis
from app.store.connection import Server
from app.store.writer import RedisStore
from tests.e2e.attacks.ground import (
    GATE,
    GPU,
    OPEN,
    RED,
    TOO_MANY,
    Ground,
    body,
    layer_of,
    path,
)
from tests.e2e.attacks.means import only, yard
from tests.e2e.attacks.outcomes import NOT_ITS_LAYER, Outcomes
from tests.e2e.attacks.port import JSON, Port, review, written
from tests.e2e.attacks.rest import asked, token_of
from tests.e2e.stage import Object, Stage, gates, until
from tests.e2e.test_faults import redis_equals_a_recount
from tests.people import Refused

LISTENS = ("everything", "webhook")
"""The modes in which a webhook runs."""

REPLAYS = 100
HEADERS = (400, 431)
"""The parser has a limit of its own, below ours."""

NOBODY = "no webhook runs in this mode"


# --- row 25 ---


def test_25_strangers_get_no_word_out_of_the_webhook(ground: Ground, outcomes: Outcomes) -> None:
    port, attack = Port(ground), "post reviews straight to the webhook"
    if ground.mode not in LISTENS:
        nobody_listens(port)
        outcomes(25, ground.mode, attack, NOT_ITS_LAYER, NOBODY)
        return
    for context in (port.bare, port.wrong):
        with pytest.raises(OSError, match=r".") as caught:
            port.post(context, written(review()))
        assert not isinstance(caught.value, ConnectionRefusedError)
    assert port.post(port.stolen, written(review()))[0] == 200
    saw = "the handshake fails without the API server's own client certificate"
    outcomes(25, ground.mode, attack, "T", saw)


def nobody_listens(port: Port) -> None:
    with pytest.raises(ConnectionRefusedError):
        port.post(port.stolen, written(review()))


@only(*LISTENS)
def test_25_a_replayed_review_has_no_effect(ground: Ground, outcomes: Outcomes) -> None:
    """Though somebody stole the API server's key."""
    port, before = Port(ground), ground.admin.get(path(RED))["items"]
    answers = set()
    with port.connected(port.stolen) as connection:
        for _ in range(REPLAYS):
            connection.request("POST", "/admit", written(review()), JSON)
            answers.add(connection.getresponse().read())
    [answer] = answers
    assert GATE in patched(answer)
    assert len(ground.admin.get(path(RED))["items"]) == len(before)
    assert not ground.exists("replayed")
    saw = "the same answer every time, and nothing else"
    outcomes(25, ground.mode, "replay one a hundred times, with a stolen certificate", "D", saw)


def patched(answer: bytes) -> str:
    """Return the patch in an answer, "" if there is none."""
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


def test_26_no_body_makes_the_webhook_fail_or_let_a_pod_pass(
    ground: Ground, outcomes: Outcomes
) -> None:
    attack = "20 MiB, deep JSON, NaN, surrogates, huge quantities, strange labels"
    port = Port(ground)
    if ground.mode not in LISTENS:
        nobody_listens(port)
        outcomes(26, ground.mode, attack, NOT_ITS_LAYER, NOBODY)
        return
    before = ground.cluster.details().pids["fairgate-webhook"]
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
    assert ground.cluster.details().pids["fairgate-webhook"] == before
    outcomes(26, ground.mode, attack, "D", "400, 413, 431 or a refusal; never a 5xx")


def test_26_a_crowd_of_slow_clients_keeps_no_pod_waiting(
    ground: Ground, outcomes: Outcomes
) -> None:
    attack = "hundreds of mute, bare and slow connections"
    port = Port(ground)
    if ground.mode not in LISTENS:
        nobody_listens(port)
        outcomes(26, ground.mode, attack, NOT_ITS_LAYER, NOBODY)
        return
    with port.crowded(mute=400, bare=100, slow=40):
        for _ in range(5):
            item = ground.stored(body(ground.name(), TOO_MANY))
            assert item is not None
            assert gates(item) == [GATE]
    outcomes(26, ground.mode, attack, "T", "pods are created and held meanwhile")


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
def test_26_odd_pods_are_refused_or_held_and_nothing_fails(
    ground: Ground, outcomes: Outcomes, what: str
) -> None:
    item = copy.deepcopy(ODD[what])
    name = item["metadata"]["name"] = ground.name("odd")
    code, said = sent(ground, item)
    if said is None:
        assert ground.mode in LISTENS
        assert ground.is_held(name)
        outcomes(26, ground.mode, "odd pods", "D", f"{what}: held")
        return
    assert not ground.exists(name)
    # Without a webhook that answers, the API server says 500: that is the outage itself.
    assert 400 <= code < 500 or layer_of(said) == "outage"
    outcomes(26, ground.mode, "odd pods", layer_of(said), f"{what}: {code}")


@only("policies")
def test_26_a_pod_that_cannot_be_read_stops_nobody(
    ground: Ground, stage: Stage, outcomes: Outcomes
) -> None:
    """The webhook would have refused it; where it is gone the leader meets such a pod."""
    ours = yard(ground, stage)
    odd = body("odd")
    odd["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "1e9999"
    assert ours.make(odd) is None
    assert ours.make(body("honest")) is None
    until("others go on", lambda: stage.running(ours.namespace) == ["honest"])
    assert ours.held() == {"odd"}
    outcomes(26, ground.mode, "odd pods", "D", "1e9999 cpu: held, and others go on")


def sent(ground: Ground, item: Object) -> tuple[int, str | None]:
    """Create a pod as Mallory; return the status, and with what sentence it was refused."""
    try:
        ground.mallory.call("POST", path(RED), item)
    except Refused as error:
        return error.status, error.message
    return 201, None


# --- row 29 ---


def forged(token: str, key_pem: bytes, **claims: object) -> str:
    """Return the token with other claims, signed by a key."""
    head, middle, _ = token.split(".")
    payload = json.loads(base64.urlsafe_b64decode(middle + "==")) | claims
    begin = f"{head}.{_web64(json.dumps(payload).encode())}"
    key = load_pem_private_key(key_pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    r, s = decode_dss_signature(key.sign(begin.encode(), ec.ECDSA(SHA256())))
    return f"{begin}.{_web64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _web64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_29_only_a_true_token_for_fairgate_is_heard(
    ground: Ground, stage: Stage, outcomes: Outcomes
) -> None:
    ours, pki = yard(ground, stage), ground.cluster.folder / "pki"
    good = token_of(ground.mallory, ours.namespace)
    signing, another = (pki / f"{n}.key" for n in ("service-accounts", "etcd"))
    strangers = {
        "a token for the API server": token_of(ground.mallory, ours.namespace, audiences=[]),
        "an expired token": forged(good, signing.read_bytes(), exp=1_000_000_000),
        "a token signed by another key": forged(good, another.read_bytes()),
        "nonsense": "nonsense",
        "no token": "",
    }
    # The forger's tool works: what it signs rightly is heard.
    assert asked(ground, "GET", "/v1/tenants", forged(good, signing.read_bytes()))[0] == 403
    for what, token in strangers.items():
        code, answer = asked(ground, "GET", "/v1/tenants", token)
        assert code == 401, f"{what}: {answer}"
        outcomes(29, ground.mode, "a false token", "R", json.loads(answer)["detail"])
    in_url = f"/v1/tenants?token={good}&access_token={good}"
    assert asked(ground, "GET", in_url, "")[0] == 401
    log = ground.cluster.folder / "logs" / "fairgate-api.log"
    assert good not in log.read_text()


def test_29_a_tenant_reads_its_own_and_nothing_else(
    ground: Ground, stage: Stage, outcomes: Outcomes
) -> None:
    ours, other = yard(ground, stage), yard(ground, stage, "bob")
    mine, yours = (f"ns.{each.namespace}" for each in (ours, other))
    token = token_of(ground.mallory, ours.namespace)
    name = ground.name("reader")
    rule = ("--verb=get", "--resource=tenants.fairgate.io/queue", f"--resource-name={mine}")
    ground.cluster.kubectl("create", "clusterrole", name, *rule)
    to = (f"--clusterrole={name}", f"--serviceaccount={ours.namespace}:default")
    ground.cluster.kubectl("create", "clusterrolebinding", name, *to)
    stage.objects += [("clusterrolebinding", name), ("clusterrole", name)]
    queue = f"/v1/tenants/{mine}/queue"
    until("RBAC lets it in", lambda: asked(ground, "GET", queue, token)[0] == 200)
    code, answer = asked(ground, "GET", f"/v1/tenants/{yours}/queue", token)
    assert code == 403
    account = f"system:serviceaccount:{ours.namespace}:default"
    sentence = f"{account} may not get tenants/queue.fairgate.io {yours}; ask for it."
    assert json.loads(answer)["detail"] == sentence
    tricks = (f"/v1/tenants/{mine}%2F..%2F{yours}/queue", f"/v1/tenants/{mine}/../{yours}/queue")
    for trick in (*tricks, "/v1/tenants", "/v1/pools", "/v1/audit"):
        assert asked(ground, "GET", trick, token)[0] in (403, 404), trick
    saw = sentence.replace(account, "...").replace(yours, "...")
    outcomes(29, ground.mode, "another tenant's queue", "R", saw)


@only("everything")
def test_29_a_token_ends_with_its_account(ground: Ground, stage: Stage, outcomes: Outcomes) -> None:
    ours = yard(ground, stage)
    token = token_of(ground.mallory, ours.namespace)
    assert asked(ground, "GET", "/v1/tenants", token)[0] == 403
    ground.cluster.kubectl("delete", "serviceaccount", "default", "-n", ours.namespace)
    until("it is heard no more", lambda: asked(ground, "GET", "/v1/tenants", token)[0] == 401)
    outcomes(29, ground.mode, "a token of an account that is gone", "R", "401, once it is noticed")


# --- row 30 ---

WRITES = "return redis.call('HSET', KEYS[1], 'epoch', ARGV[1])"
ACL = "on >{} resetkeys ~fairgate:* resetchannels -@all +@read +@write +@scripting +@connection"
ACL_LESS = "-@dangerous +info"
"""What Fairgate needs of Redis: its own keys, its scripts, and INFO."""


def test_30_an_emptied_or_falsified_redis_costs_a_pause_only(
    ground: Ground, stage: Stage, outcomes: Outcomes
) -> None:
    attack = "FLUSHALL, CONFIG SET, EVAL and false keys by whoever reaches Redis"
    before = {p["metadata"]["name"] for p in ground.admin.get(path(RED))["items"] if gates(p)}
    epoch = int(stage.metric("controller", "fairgate_leader_epoch"))
    state = "fairgate:{default}:state"
    with redis.Redis.from_url(ground.cluster.details().redis) as server:
        server.config_set("maxmemory-policy", "allkeys-lru")
        server.config_set("maxmemory-policy", "noeviction")
        server.flushall()
        server.eval(WRITES, 1, state, "nonsense")
        until("it is written anew", lambda: server.hget(state, "epoch") == str(epoch).encode())
        server.eval(WRITES, 1, state, epoch + 1000)
        until(
            "a leader of a higher epoch leads",
            lambda: stage.metric("controller", "fairgate_leader_epoch") > epoch,
        )
        server.flushall()
    until("Redis equals a recount", lambda: is_rebuilt(stage))
    after = {p["metadata"]["name"] for p in ground.admin.get(path(RED))["items"] if gates(p)}
    assert after == before
    outcomes(30, ground.mode, attack, "D", "a pause, a higher epoch, and a rebuild; none released")


def is_rebuilt(stage: Stage) -> bool:
    try:
        return redis_equals_a_recount(stage)
    except StoreEmptied:
        return False


@only("everything")
async def test_30_whoever_has_no_password_gets_nothing_from_redis(
    ground: Ground, outcomes: Outcomes, tmp_path: Path
) -> None:
    """Of a Redis that is run as it should be: see docs."""
    processes = Processes(tmp_path)
    try:
        url = start_redis(tmp_path, processes, durable=False)
        with redis.Redis.from_url(url) as owner:
            owner.execute_command(
                "ACL", "SETUSER", "fairgate", *ACL.format("secret").split(), *ACL_LESS.split()
            )
            owner.execute_command("ACL", "SETUSER", "default", "off")
        said = await _tried(url, "FLUSHALL", "CONFIG GET *", "EVAL return\t1 0", "PING")
        assert all("already authenticated" in each for each in said), said
        known = url.replace("redis://", "redis://fairgate:wrong@")
        assert "invalid username-password" in (await _tried(known, "PING"))[0]
        known = url.replace("redis://", "redis://fairgate:secret@")
        commands = (
            "FLUSHALL",
            "CONFIG SET dir /",
            "KEYS *",
            "GET others",
            "ACL LIST",
            "DEBUG SEGFAULT",
        )
        refused = await _tried(known, *commands)
        assert all("no permissions" in each or "no such key" in each for each in refused), refused
        server = Server.connect(known)
        store = RedisStore(server, "default")
        ref = PodRef(Uid("u"), "ns", "p")
        await store.rebuild(1, [Enqueue(ref, TenantName("t"), UserName("u"), "0")])
        assert await store.queue(TenantName("t"), UserName("u"), 10) == (ref,)
        await store.write(1, [])
        await server.close()
    finally:
        processes.stop_all()
    saw = said[0].partition("let us in: ")[2].partition(",")[0]
    outcomes(30, ground.mode, "Redis without its password", "T", saw)


async def _tried(url: str, *commands: str) -> list[str]:
    server, said = Server.connect(url), []
    for command in commands:
        with pytest.raises(StoreUnavailable) as caught:
            await server.call(*command.split(" "))
        said.append(str(caught.value))
    await server.close()
    return said


# --- row 31 ---


def test_31_the_audit_log_of_the_api_server_names_who_tried(
    ground: Ground, stage: Stage, outcomes: Outcomes
) -> None:
    name = ground.held()
    assert ground.mallory.refused("PATCH", path(RED, name), [OPEN], "json") is not None

    def logged(who: str) -> list[int]:
        return [
            entry["responseStatus"]["code"]
            for entry in map(json.loads, ground.cluster.audit_log.read_text().splitlines())
            if entry["user"]["username"] == who
            and entry["verb"] == "patch"
            and entry["objectRef"].get("name") == name
        ]

    until("it is written", lambda: bool(logged("mallory")))
    assert logged("mallory") == [403] or ground.mode == "killed"
    saw = "no chain of Fairgate's own yet; the API server's audit log names who tried"
    outcomes(31, ground.mode, "cut or edit the audit log", "-", saw)
