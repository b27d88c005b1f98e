"""The webhook's endpoints: an AdmissionReview comes in, an AdmissionReview goes out.

No I/O beyond the request itself, and never an allowed answer out of a mistake: what cannot be
judged is refused, with a sentence. Who judges is in `judges`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Generic, TypeVar

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app import wire
from app.audit_ports import Reporter
from app.core.admission import gate
from app.core.admission.guard import Guard, Rules
from app.core.admission.templates import BUILT_IN, Kind
from app.core.audit import Deed, Fact
from app.core.resources import ManagedResources
from app.web import review
from app.web.body import BodyTooLarge, BodyTooSlow, Disconnected, read_body
from app.web.judges import Authorship, Ground, Holding, Stamping, Validation
from app.web.metrics import ADMISSION_DURATION, ADMISSION_REQUESTS
from app.web.review import Answer, Request, Unreadable
from app.web.view import View

T = TypeVar("T")

log = logging.getLogger("fairgate.web")

BODY_LIMIT = 8 * 1024 * 1024
"""An API server takes objects of 3 MiB; a review holds at most two of them."""

DECISIONS = ("ignore", "hold", "mend", "refuse", "error", "would-hold", "would-refuse")

NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

LONGEST_NAME = 253
"""Characters of what a caller wrote, in a report."""

DEFECT = "Fairgate could not judge this request; it was refused."
TOO_LARGE = f"Fairgate reads reviews of at most {BODY_LIMIT >> 20} MiB; make this object smaller."


@dataclass(frozen=True, slots=True)
class Enforced:
    """What the webhook is told of the cluster. `releasers`: users that take gates away.

    `speakers`: users that change our resources for others, and say for whom.
    """

    managed: ManagedResources
    exempt: frozenset[str]
    rules: Rules = field(default_factory=Rules)
    templates: tuple[Kind, ...] = BUILT_IN
    releasers: frozenset[str] = frozenset()
    speakers: frozenset[str] = frozenset()


def admission_app(
    view: View, enforced: Enforced, ready: Callable[[], bool], reporter: Reporter | None = None
) -> FastAPI:
    """Return the app that answers `POST` to /admit, /stamp, /sign and /validate.

    `ready` tells whether the view is complete. It is not the readiness of the process: a webhook
    that drains still judges. The `reporter` hears what was refused.
    """
    kinds = {(kind.group, kind.resource): kind for kind in enforced.templates}
    ground = Ground(view, enforced.managed, enforced.exempt, Guard(enforced.rules), kinds, ready)
    validation = Validation(ground, enforced.releasers)
    routes = {
        "/admit": Admission(review.reader(wire.Pod), Holding(ground).judge, reporter),
        "/stamp": Admission(review.reader(dict[str, Any]), Stamping(ground).judge),
        "/sign": Admission(
            review.reader(dict[str, Any]), Authorship(ground, enforced.speakers).judge
        ),
        "/validate": Admission(review.reader(dict[str, Any]), validation.judge, reporter),
    }
    # Plain ASGI endpoints, not FastAPI handlers: those would decode the body a second time.
    return FastAPI(
        title="Fairgate",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        routes=[Route(path, endpoint=at, methods=["POST"]) for path, at in routes.items()],
    )


class Admission(Generic[T]):
    """An endpoint, as a plain ASGI app: bytes are read, judged, and answered."""

    def __init__(
        self,
        read: Callable[[bytes | bytearray], Request[T]],
        judge: Callable[[Request[T]], gate.Verdict],
        reporter: Reporter | None = None,
    ) -> None:
        self._read = read
        self._judge = judge
        self._reporter = reporter
        self._count = {decision: ADMISSION_REQUESTS.labels(decision) for decision in DECISIONS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if not _is_json(scope):
            answer = Answer(415, b"Fairgate reads application/json only.", "error")
        else:
            try:
                answer = self._answer(await read_body(receive, BODY_LIMIT))
            except BodyTooLarge as error:
                answer = _too_large(error.beginning)
            except BodyTooSlow:
                answer = Answer(408, b"The request did not arrive in time.", "error")
            except Disconnected:
                return
        self._count[answer.decision].inc()
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.head})
        await send({"type": "http.response.body", "body": answer.body})

    def _answer(self, body: bytes | bytearray) -> Answer:
        """Return the answer to a body that arrived whole; never raises."""
        began = perf_counter()
        uid = ""
        try:
            request = self._read(body)
            uid = request.uid
            verdict = self._judge(request)
            answer = review.encode(uid, verdict)
            if isinstance(verdict, gate.Refuse):
                _log_refusal(request, verdict)
                self._report(request, verdict)
        except Unreadable as error:
            answer = review.refuse(error.uid, 422 if error.uid else 400, str(error))
        except Exception:
            log.exception("could not judge a request", extra={"review": uid})
            uid = uid or review.uid_of(body)
            answer = review.refuse(uid, 500 if uid else 400, DEFECT)
        ADMISSION_DURATION.observe(perf_counter() - began)
        return answer

    def _report(self, request: Request[T], verdict: gate.Refuse) -> None:
        """Tell the auditor; of a dry run nothing would have come.

        What no API server sends, it did not send: whoever reaches this port can write anything.
        """
        if self._reporter is None or request.dry_run or verdict.code >= 500:
            return
        if request.namespace and not NAMESPACE.fullmatch(request.namespace):
            return
        what = request.resource.resource + (f"/{request.sub_resource}" * bool(request.sub_resource))
        facts: dict[str, Fact] = {
            "user": request.user_info.username[:LONGEST_NAME],
            "namespace": request.namespace,
            "what": f"{request.operation} {what}"[:LONGEST_NAME],
            "why": verdict.message[:LONGEST_NAME],
        }
        self._reporter.report(Deed.REFUSED, facts, request.name[:LONGEST_NAME])


def _too_large(beginning: bytes) -> Answer:
    uid = review.uid_of(beginning)
    return review.refuse(uid, 413, TOO_LARGE)


def _is_json(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"content-type":
            kind: bytes = value.partition(b";")[0].strip().lower()
            return kind == b"application/json"
    return False


def _log_refusal(request: Request[Any], verdict: gate.Refuse) -> None:
    log.info(
        "refused",
        extra={
            "namespace": request.namespace,
            "resource": request.resource.resource,
            "subresource": request.sub_resource,
            "operation": request.operation,
            "object": request.name,
            "user": request.user_info.username,
            "code": verdict.code,
            "why": verdict.message,
        },
    )
