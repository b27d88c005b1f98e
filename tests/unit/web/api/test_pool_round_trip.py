"""A pool read over REST can be written back unchanged."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from app.core.events import PoolObserved
from app.k8s_types import objects
from app.kube.convert_custom import read_pool
from app.web.api.schemas import PoolSpecModel
from tests.support.asgi import call
from tests.support.rest_app import NOW, Both

WRITTEN: dict[str, Any] = {
    "nodeSelector": {"gpu": "h100"},
    "weights": {"nvidia.com/gpu": "2.5"},
    "overcommit": {"cpu": "1.5"},
    "placement": "spread",
    "tolerations": [
        {"operator": "Exists"},
        {"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"},
        {"key": "slow", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
    ],
    "topology": ["zone", "example.com/rack"],
    "paused": True,
    "gpuMemory": "80Gi",
    "maxCapacity": {"nvidia.com/gpu": "96", "cpu": "1500m"},
}


def read(spec: dict[str, Any]) -> PoolObserved:
    document = {"metadata": {"name": "h100", "uid": "u", "generation": 1}, "spec": spec}
    return read_pool(msgspec.convert(document, objects.PoolObject), NOW)


async def test_put_of_a_pool_as_it_was_read_changes_nothing() -> None:
    assert WRITTEN.keys() == set(objects.PoolObjectSpec.__struct_encode_fields__), (
        "every field is tried"
    )
    both = Both()
    both.rights.everything = True
    both.resources.put("pools", "h100", WRITTEN)
    await both.hear(read(WRITTEN))
    await both.open()

    got = (await both.get("/v1/pools/h100")).json
    names = [field.alias for field in PoolSpecModel.model_fields.values()]
    body = json.dumps({name: got[name] for name in names if name is not None}).encode()
    head = {"authorization": "Bearer alices", "content-type": "application/json"}
    reply = await call(both.app, "PUT", "/v1/pools/h100", body, head)

    assert reply.status == 200, reply.body
    stored = both.resources.spec("pools", "h100")
    assert stored is not None
    assert read(stored).pool == read(WRITTEN).pool
