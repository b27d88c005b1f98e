"""The webhook's one endpoint: an AdmissionReview comes in, an AdmissionReview goes out.

No I/O beyond the request itself, and never an allowed answer out of a mistake: what cannot be
judged is refused, with a sentence. The rules are in `core.gate`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from time import perf_counter

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.core import gate
from app.core.errors import InvalidQuantity
from app.core.model import Resource, UserName
from app.core.resources import ManagedResources
from app.web import review
from app.web.body import BodyTooLarge, BodyTooSlow, Disconnected, read_body
from app.web.metrics import ADMISSION_DURATION, ADMISSION_REQUESTS
from app.web.review import Answer, Request, Unreadable
from app.web.view import View

log = logging.getLogger("fairgate.web")

BODY_LIMIT = 8 * 1024 * 1024
"""An API server takes objects of 3 MiB; a review holds at most two of them."""

NOT_READY = "Fairgate has just started and does not know the tenants yet; try again in a moment."
DEFECT = "Fairgate could not judge this pod; it was not created."
TOO_LARGE = f"Fairgate reads reviews of at most {BODY_LIMIT >> 20} MiB; make this pod smaller."


def admission_app(
    view: View,
    managed: ManagedResources,
    exempt: Collection[str],
    ready: Callable[[], bool],
) -> FastAPI:
    """Return the app that answers `POST /admit`.

    `ready` tells whether the view is complete. It is not the readiness of the process: a webhook
    that drains still judges.
    """
    endpoint = Admission(Judge(view, managed, frozenset(exempt), ready))
    # A plain ASGI endpoint, not a FastAPI handler: that would decode the body a second time.
    route = Route("/admit", endpoint=endpoint, methods=["POST"])
    return FastAPI(
        title="Fairgate", docs_url=None, redoc_url=None, openapi_url=None, routes=[route]
    )


class Judge:
    """From a readable request to a verdict."""

    def __init__(
        self,
        view: View,
        managed: ManagedResources,
        exempt: frozenset[str],
        ready: Callable[[], bool],
    ) -> None:
        self._view = view
        self._managed = managed
        self._exempt = exempt
        self._ready = ready

    def judge(self, request: Request) -> gate.Verdict:
        """Decide. A dry run is judged like any other request: nothing here has an effect."""
        if request.operation != "CREATE" or request.sub_resource:
            return gate.Ignore()
        if request.namespace in self._exempt:
            return gate.Ignore()
        pod = request.object
        if pod is None:
            return gate.Refuse(422, "Fairgate: the review holds no pod to judge.")
        try:
            demand = pod.spec.demand()
        except InvalidQuantity as error:
            return gate.Refuse(422, f"Fairgate cannot read what this pod asks for: {error}")
        if not self._managed.asked(demand) and not pod.spec.resource_claims:
            return gate.Ignore()
        if not self._ready():
            return gate.Refuse(503, NOT_READY)
        candidate = _candidate(request, demand)
        return gate.judge(candidate, self._view.owner_of(request.namespace), self._managed)


class Admission:
    """The endpoint, as a plain ASGI app."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._count = {
            decision: ADMISSION_REQUESTS.labels(decision)
            for decision in ("ignore", "hold", "refuse", "error")
        }

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
            request = review.decode(body)
            uid = request.uid
            verdict = self._judge.judge(request)
            answer = review.encode(uid, verdict)
            if isinstance(verdict, gate.Refuse):
                _log_refusal(request, verdict)
        except Unreadable as error:
            answer = review.refuse(error.uid, 422 if error.uid else 400, str(error))
        except Exception:
            log.exception("could not judge a pod", extra={"review": uid})
            uid = uid or review.uid_of(body)
            answer = review.refuse(uid, 500 if uid else 400, DEFECT)
        ADMISSION_DURATION.observe(perf_counter() - began)
        return answer


def _candidate(request: Request, demand: dict[Resource, int]) -> gate.Candidate:
    pod = request.object
    assert pod is not None
    return gate.Candidate(
        namespace=request.namespace,
        user=UserName(request.user_info.username),
        demand=demand,
        gates=tuple(gate_.name for gate_ in pod.spec.scheduling_gates or ()),
        labels=pod.metadata.labels,
        annotations=pod.metadata.annotations,
        node_name=pod.spec.node_name,
        has_claims=bool(pod.spec.resource_claims),
    )


def _too_large(beginning: bytes) -> Answer:
    uid = review.uid_of(beginning)
    return review.refuse(uid, 413, TOO_LARGE)


def _is_json(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"content-type":
            kind: bytes = value.partition(b";")[0].strip().lower()
            return kind == b"application/json"
    return False


def _log_refusal(request: Request, verdict: gate.Refuse) -> None:
    metadata = request.object.metadata if request.object else None
    name = (metadata.name or metadata.generate_name) if metadata else ""
    log.info(
        "refused a pod",
        extra={
            "namespace": request.namespace,
            "pod": name,
            "user": request.user_info.username,
            "code": verdict.code,
            "why": verdict.message,
        },
    )
