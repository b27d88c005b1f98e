"""Refuses bodies with text that UTF-8 cannot encode.

JSON allows half of a surrogate pair (`"\\ud800"`), and Python reads it. It cannot be sent on to the
API server or Redis, or back to the caller. Paths, queries and headers cannot contain it: invalid
bytes in them are replaced.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request

from app.web.api.refused import Refused

METHODS = ("PUT", "POST")
"""The methods of the routes that read a body."""


async def require_valid_text(request: Request) -> None:
    """Raise Refused (422) for half of a surrogate pair in a string or key of the body.

    A FastAPI dependency. FastAPI has already refused a body that is not JSON.
    """
    if request.method not in METHODS or not await request.body():
        return
    body = await request.json()
    if _is_encodable(body):
        return
    fields = body.items() if isinstance(body, dict) else ()
    where = next((k for k, value in fields if _is_encodable(k) and not _is_encodable(value)), None)
    raise Refused(
        422,
        f"{where or 'The body'}: the text is not valid Unicode: it has half of a surrogate pair; "
        "leave it out.",
    )


def _is_encodable(document: Any) -> bool:
    """Return whether UTF-8 can encode all strings and keys of a JSON document.

    Raises Refused (422) for a document that is nested too deeply.
    """
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    except RecursionError as error:
        raise Refused(422, "The body is nested too deeply; send a flatter one.") from error
    return True
