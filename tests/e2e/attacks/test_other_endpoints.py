"""Rows 29 to 31: endpoints other than the API server, and the audit chain afterwards."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import redis
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from app.core.effects import Enqueue, PodRef
from app.core.fairshare.user_queue import QueueKey
from app.core.model import Millis, TenantName, Uid, UserName
from app.devcluster.processes import Processes
from app.devcluster.redis_server import start_redis
from app.store.connection import Server
from app.store.leader_store import RedisStore
from tests.e2e.attacks.attack_cluster import RED, AttackEnvironment, path
from tests.e2e.attacks.attack_namespaces import only, yard
from tests.e2e.attacks.outcomes import Outcomes
from tests.e2e.attacks.rest_requests import asked, token_of
from tests.support.audit_checks import anchor, audit
from tests.support.cluster_driver import GATE, Object, Stage, gates, until

ANCHOR = "/api/v1/namespaces/fairgate-system/configmaps/fairgate-audit"

# --- row 29 ---


def forged(token: str, key_pem: bytes, **claims: object) -> str:
    """Return the token with other claims, signed with a key."""
    head, middle, _ = token.split(".")
    payload = json.loads(base64.urlsafe_b64decode(middle + "==")) | claims
    begin = f"{head}.{_web64(json.dumps(payload).encode())}"
    key = load_pem_private_key(key_pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    r, s = decode_dss_signature(key.sign(begin.encode(), ec.ECDSA(SHA256())))
    return f"{begin}.{_web64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _web64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_29_rest_api_accepts_only_a_valid_token_for_fairgate(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    ours, pki = yard(env, stage), env.cluster.folder / "pki"
    good = token_of(env.mallory, ours.namespace)
    signing, another = (pki / f"{n}.key" for n in ("service-accounts", "etcd"))
    strangers = {
        "a token for the API server": token_of(env.mallory, ours.namespace, audiences=[]),
        "an expired token": forged(good, signing.read_bytes(), exp=1_000_000_000),
        "a token signed by another key": forged(good, another.read_bytes()),
        "nonsense": "nonsense",
        "no token": "",
    }
    # The signing helper works: a correctly signed token is accepted.
    assert asked(env, "GET", "/v1/tenants", forged(good, signing.read_bytes()))[0] == 403
    for what, token in strangers.items():
        code, answer = asked(env, "GET", "/v1/tenants", token)
        assert code == 401, f"{what}: {answer}"
        outcomes(29, env.mode, "a false token", "R", json.loads(answer)["detail"])
    in_url = f"/v1/tenants?token={good}&access_token={good}"
    assert asked(env, "GET", in_url, "")[0] == 401
    log = env.cluster.folder / "logs" / "fairgate-api.log"
    assert good not in log.read_text()


def test_29_tenant_user_reads_only_the_queue_that_rbac_allows(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    ours, other = yard(env, stage), yard(env, stage, "bob")
    mine, yours = (f"ns.{each.namespace}" for each in (ours, other))
    token = token_of(env.mallory, ours.namespace)
    name = env.name("reader")
    rule = ("--verb=get", "--resource=tenants.fairgate.io/queue", f"--resource-name={mine}")
    env.cluster.kubectl("create", "clusterrole", name, *rule)
    to = (f"--clusterrole={name}", f"--serviceaccount={ours.namespace}:default")
    env.cluster.kubectl("create", "clusterrolebinding", name, *to)
    stage.objects += [("clusterrolebinding", name), ("clusterrole", name)]
    queue = f"/v1/tenants/{mine}/queue"
    until("RBAC lets it in", lambda: asked(env, "GET", queue, token)[0] == 200)
    code, answer = asked(env, "GET", f"/v1/tenants/{yours}/queue", token)
    assert code == 403
    account = f"system:serviceaccount:{ours.namespace}:default"
    sentence = (
        f"{account} may not get tenants/queue.fairgate.io {yours}; ask a cluster administrator."
    )
    assert json.loads(answer)["detail"] == sentence
    tricks = (f"/v1/tenants/{mine}%2F..%2F{yours}/queue", f"/v1/tenants/{mine}/../{yours}/queue")
    for trick in (*tricks, "/v1/tenants", "/v1/pools", "/v1/audit"):
        assert asked(env, "GET", trick, token)[0] in (403, 404), trick
    saw = sentence.replace(account, "...").replace(yours, "...")
    outcomes(29, env.mode, "another tenant's queue", "R", saw)


@only("everything")
def test_29_a_token_ends_with_its_account(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    ours = yard(env, stage)
    token = token_of(env.mallory, ours.namespace)
    assert asked(env, "GET", "/v1/tenants", token)[0] == 403
    env.cluster.kubectl("delete", "serviceaccount", "default", "-n", ours.namespace)
    until("it is heard no more", lambda: asked(env, "GET", "/v1/tenants", token)[0] == 401)
    outcomes(29, env.mode, "a token of an account that is gone", "R", "401, once it is noticed")


# --- row 30 ---

STATE = "fairgate:{default}:state"
SUBMITTER = "fairgate.io/submitter"
WRITES = "return redis.call('HSET', KEYS[1], 'epoch', ARGV[1])"
ACL = "on >{} resetkeys ~fairgate:* resetchannels -@all +@read +@write +@scripting +@connection"
ACL_LESS = "-@dangerous +info"
"""Rights that Fairgate needs in Redis: its own keys, its scripts, and INFO."""


def test_30_an_emptied_or_falsified_redis_costs_a_pause_only(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    attack = "FLUSHALL, CONFIG SET, EVAL and false keys by whoever reaches Redis"
    before = held(env)
    mine = sum(item["metadata"]["annotations"][SUBMITTER] == "mallory" for item in before.values())
    epoch = int(stage.metric("controller", "fairgate_leader_epoch"))
    with redis.Redis.from_url(env.cluster.details().redis) as server:
        server.config_set("maxmemory-policy", "allkeys-lru")
        server.config_set("maxmemory-policy", "noeviction")
        server.flushall()
        server.eval(WRITES, 1, STATE, "nonsense")
        until("it is written anew", lambda: server.hget(STATE, "epoch") == str(epoch).encode())
        server.eval(WRITES, 1, STATE, epoch + 1000)
        until(
            "a leader of a higher epoch leads",
            lambda: stage.metric("controller", "fairgate_leader_epoch") > epoch,
        )
        server.flushall()
        until("all who wait are in it", lambda: waiting(server, "ns.red:mallory") == mine)
    assert held(env).keys() == before.keys()
    outcomes(30, env.mode, attack, "D", "a pause, a higher epoch, and a rebuild; none released")


def held(env: AttackEnvironment) -> dict[str, Object]:
    """Return the held pods of the red namespace by name."""
    items = env.admin.get(path(RED))["items"]
    return {item["metadata"]["name"]: item for item in items if GATE in gates(item)}


def waiting(server: redis.Redis, queue: str) -> int:
    """Return the number of waiting pods in a queue, as stored in Redis."""
    generation = server.hget(STATE, "generation")
    if not isinstance(generation, bytes):
        return 0
    found = server.hget(f"fairgate:{{default}}:{generation.decode()}:waiting", queue)
    return int(found) if isinstance(found, bytes) else 0


@only("everything")
async def test_30_redis_refuses_clients_without_password_or_rights(
    env: AttackEnvironment, outcomes: Outcomes, tmp_path: Path
) -> None:
    """The Redis is configured as docs/security.md requires."""
    processes = Processes(tmp_path)
    try:
        url = start_redis(tmp_path, processes, durable=False)
        with redis.Redis.from_url(url) as owner:
            owner.execute_command(
                "ACL", "SETUSER", "fairgate", *ACL.format("secret").split(), *ACL_LESS.split()
            )
            owner.execute_command("ACL", "SETUSER", "default", "off")
        where = url.rpartition("@")[2]
        said = tried(f"redis://{where}", "FLUSHALL", "CONFIG GET *", "EVAL return\t1 0", "PING")
        assert set(said) == {"Authentication required."}
        known = f"redis://fairgate:wrong@{where}"
        assert "invalid username-password" in tried(known, "PING")[0]
        known = f"redis://fairgate:secret@{where}"
        commands = (
            "FLUSHALL",
            "CONFIG SET dir /",
            "KEYS *",
            "GET others",
            "ACL LIST",
            "DEBUG SEGFAULT",
        )
        refused = tried(known, *commands)
        assert all("no permissions" in each or "no such key" in each for each in refused), refused
        server = Server.connect(known)
        store = RedisStore(server, "default")
        ref, turn = PodRef(Uid("u"), "ns", "p"), QueueKey(0, Millis(0), Uid("u"))
        await store.rebuild(1, [Enqueue(ref, TenantName("t"), UserName("u"), turn.rank)])
        [row] = await store.read_page(TenantName("t"), [UserName("u")], None, 10)
        assert row.ref == ref
        await store.write(1, [])
        await server.close()
    finally:
        processes.stop_all()
    outcomes(30, env.mode, "Redis without its password", "T", said[0])


def tried(url: str, *commands: str) -> list[str]:
    """Return the error messages of commands that Redis refuses. Every command must be refused."""
    said = []
    with redis.Redis.from_url(url, protocol=2) as server:
        for command in commands:
            with pytest.raises(redis.RedisError) as caught:
                server.execute_command(*command.split(" "))
            said.append(str(caught.value))
    return said


# --- row 31 ---


def test_31_a_chain_that_was_cut_or_edited_does_not_verify(
    env: AttackEnvironment, tmp_path: Path, outcomes: Outcomes
) -> None:
    assert env.mallory.refused("GET", ANCHOR, None) is not None
    assert env.mallory.refused("PATCH", ANCHOR, {"data": {"number": "1"}}) is not None
    head, told = tmp_path / "head.json", []

    def anchored() -> int:
        return int(json.loads(head.read_text())["data"]["number"])

    def is_whole() -> bool:
        """Return whether the chain contains the signed head, after any loss in Redis."""
        head.write_text(anchor(env.cluster))
        told[:] = map(json.loads, audit(env.cluster, "export").stdout.splitlines())
        return any(entry.get("number") == anchored() for entry in told)

    until("the chain is anchored", is_whole)
    signed = anchored()
    edits = ({"at": e["at"] + 1} if e.get("number") == signed else {} for e in told)
    lines = [json.dumps(e) + "\n" for e in told]
    edited = [json.dumps(e | edit) + "\n" for e, edit in zip(told, edits, strict=True)]
    cut = [json.dumps(e) + "\n" for e in told if e.get("number", signed) < signed]

    def verdict(copy: list[str]) -> int:
        done = audit(env.cluster, "verify", "-", "--head", str(head), stdin="".join(copy))
        return done.returncode

    assert edited != lines
    assert verdict(lines) == 0
    assert [verdict(cut), verdict(edited)] == [1, 1]
    assert audit(env.cluster, "verify").returncode == 0
    saw = "`fairgate audit verify` names it; the signed head is out of reach"
    outcomes(31, env.mode, "cut or edit the audit log", "-", saw)
