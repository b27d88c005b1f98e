"""Parts of the OpenAPI document that FastAPI does not derive: shared models, and operation ids.

Problems and the events of the stream are not the declared body of any route.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

REFERENCE = "#/components/schemas/{model}"


def reference(model: type[BaseModel]) -> dict[str, str]:
    """Return the reference to a model of the document."""
    return {"$ref": REFERENCE.format(model=model.__name__)}


def add_models(document: dict[str, Any], models: Sequence[type[BaseModel]]) -> None:
    """Add models, and the models that they contain, unless a route has added them already."""
    wanted = [(each, "serialization") for each in models]
    _, found = models_json_schema(wanted, ref_template=REFERENCE)  # type: ignore[arg-type]
    known = document["components"]["schemas"]
    document["components"]["schemas"] = {**found["$defs"], **known}


def stream_of(events: dict[str, type[BaseModel]]) -> dict[str, Any]:
    """Return the schema of a stream of server-sent events: an array with an item for each event.

    OpenAPI 3.1 has no word for sequential media types. OpenAPI 3.2 reads `schema` in this way.
    """
    items = [
        {
            "type": "object",
            "required": ["event", "data"],
            "properties": {
                "event": {"const": name},
                "data": {
                    "type": "string",
                    "contentMediaType": "application/json",
                    "contentSchema": reference(model),
                },
            },
        }
        for name, model in events.items()
    ]
    return {"type": "array", "items": {"oneOf": items}}


def operation_id(route: APIRoute) -> str:
    """Return the id of a route, such as `get_tenant_queue`. Generated clients use it as a name."""
    parts = [each for each in route.path_format.split("/") if each not in ("", "v1")]
    words = [min(route.methods or ()).lower()]
    for part, following in zip(parts, [*parts[1:], ""], strict=True):
        if not part.startswith("{"):
            words.append(part.removesuffix("s") if following.startswith("{") else part)
    return re.sub(r"[^a-z0-9]+", "_", "_".join(words))
