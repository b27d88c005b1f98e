"""ASGI app of the admission webhook: it answers AdmissionReviews.

An endpoint does no I/O except the request itself, and the search for the submitter of an object
that a controller creates. It refuses a request that it cannot evaluate, with a message. The
handlers are in `handlers`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.core.admission import hold
from app.core.admission.pod_templates import TemplateKind, group_by_resource
from app.core.admission.submitters import NO_OWNER, OwnerAnswer, OwnerRef
from app.core.admission.validation import PodValidator, ValidationRules
from app.core.admission.workload_kinds import BUILT_IN
from app.core.audit_entry import EntryType, Fact
from app.core.quantities import ManagedResources
from app.k8s_types import objects
from app.ports.audit import Reporter
from app.web.metrics import ADMISSION_DURATION, ADMISSION_REQUESTS
from app.web.server.request_body import BodyTooLarge, BodyTooSlow, Disconnected, read_body
from app.web.webhook import admission_review
from app.web.webhook.admission_review import Request, ReviewResponse, Unreadable
from app.web.webhook.cache import WebhookCache
from app.web.webhook.handlers import (
    ChangedByHandler,
    HandlerContext,
    HoldHandler,
    TemplateStampHandler,
    ValidateHandler,
)
from app.web.webhook.owner_resolver import OwnerResolver

T = TypeVar("T")

log = logging.getLogger("fairgate.web")

BODY_LIMIT = 8 * 1024 * 1024
"""An API server accepts objects of 3 MiB, and a review contains at most two objects."""

DECISIONS = ("ignore", "hold", "mend", "refuse", "error", "would-hold", "would-refuse")

NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

LONGEST_NAME = 253
"""Most characters of a caller's text in a report."""

DEFECT = "Fairgate: it failed to judge this request, so the request is refused."
TOO_LARGE = (
    f"Fairgate: it reads reviews of at most {BODY_LIMIT >> 20} MiB; make this object smaller."
)


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    """Configuration of the webhook.

    `releasers`: accounts that may remove the gate. `delegates`: accounts that change Fairgate's
    resources on behalf of other users, and name the user.
    """

    managed: ManagedResources
    exempt: frozenset[str]
    rules: ValidationRules = field(default_factory=ValidationRules)
    templates: tuple[TemplateKind, ...] = BUILT_IN
    releasers: frozenset[str] = frozenset()
    delegates: frozenset[str] = frozenset()


def admission_app(
    view: WebhookCache,
    enforced: WebhookConfig,
    ready: Callable[[], bool],
    reporter: Reporter | None = None,
    owners: OwnerResolver | None = None,
) -> Starlette:
    """Return the app that answers `POST` to /admit, /stamp, /sign and /validate.

    `ready` returns whether the view is complete. It is not the readiness of the process: a webhook
    that drains still answers. `reporter` receives refusals for the audit chain. Without `owners`
    no owner is looked up.
    """
    kinds = group_by_resource(enforced.templates)
    context = HandlerContext(
        view, enforced.managed, enforced.exempt, PodValidator(enforced.rules), kinds, ready
    )
    pods = admission_review.review_decoder(objects.PodObject)
    any_kind = admission_review.review_decoder(dict[str, Any])
    validation = ValidateHandler(context, enforced.releasers)
    changed_by = ChangedByHandler(enforced.delegates)
    routes: dict[str, ASGIApp] = {
        "/admit": Admission(pods, HoldHandler(context), reporter, owners),
        "/stamp": Admission(any_kind, TemplateStampHandler(context), None, owners),
        "/sign": Admission(any_kind, changed_by),
        "/validate": Admission(any_kind, validation, reporter, owners),
    }
    return Starlette(
        routes=[Route(path, endpoint=at, methods=["POST"]) for path, at in routes.items()]
    )


class Handler(Protocol[T]):
    """The decisions of one path."""

    def owner_to_look_up(self, request: Request[T], /) -> OwnerRef | None:
        """Return the owner to look up before the decision; None if there is no need."""

    def decide(self, request: Request[T], owner: OwnerAnswer, /) -> hold.HoldVerdict:
        """Return the decision."""


class Admission(Generic[T]):
    """One endpoint, as a plain ASGI app."""

    def __init__(
        self,
        decode: Callable[[bytes | bytearray], Request[T]],
        handler: Handler[T],
        reporter: Reporter | None = None,
        owners: OwnerResolver | None = None,
    ) -> None:
        self._decode = decode
        self._handler = handler
        self._reporter = reporter
        self._owners = owners
        self._counters = {decision: ADMISSION_REQUESTS.labels(decision) for decision in DECISIONS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if not _is_json(scope):
            answer = ReviewResponse(415, b"Fairgate reads application/json only.", "error")
        else:
            try:
                answer = await self._answer_review(await read_body(receive, BODY_LIMIT))
            except BodyTooLarge as error:
                answer = _too_large(error.beginning)
            except BodyTooSlow:
                answer = ReviewResponse(408, b"The request did not arrive in time.", "error")
            except Disconnected:
                return
        self._counters[answer.decision].inc()
        await send(
            {"type": "http.response.start", "status": answer.status, "headers": answer.headers}
        )
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer_review(self, body: bytes | bytearray) -> ReviewResponse:
        """Return the answer to a complete body. Never raises."""
        began = perf_counter()
        uid = ""
        try:
            request = self._decode(body)
            uid = request.uid
            verdict = self._handler.decide(request, await self._find_owner(request))
            answer = admission_review.encode_response(uid, verdict)
            if isinstance(verdict, hold.DenyDecision):
                _log_refusal(request, verdict)
                self._report(request, verdict)
        except Unreadable as error:
            answer = admission_review.refusal_response(
                error.uid, 422 if error.uid else 400, str(error)
            )
        except Exception:
            log.exception("could not judge a request", extra={"review": uid})
            uid = uid or admission_review.uid_of(body)
            answer = admission_review.refusal_response(uid, 500 if uid else 400, DEFECT)
        ADMISSION_DURATION.observe(perf_counter() - began)
        return answer

    async def _find_owner(self, request: Request[T]) -> OwnerAnswer:
        if self._owners is None:
            return NO_OWNER
        named = self._handler.owner_to_look_up(request)
        return NO_OWNER if named is None else await self._owners.find_submitter(request, named)

    def _report(self, request: Request[T], verdict: hold.DenyDecision) -> None:
        """Report a refusal for the audit chain, unless it is a dry run.

        Any client of this port can send forged reviews. So ignore a review with a namespace that
        no API server would send.
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
        self._reporter.report(EntryType.REFUSED, facts, _name(request)[:LONGEST_NAME])


def _name(request: Request[Any]) -> str:
    """Return the name of an object. A pod that has none yet has the name of its controller."""
    pod = request.object
    if request.name or not isinstance(pod, objects.PodObject):
        return request.name
    owner = next((o for o in pod.metadata.owner_references or () if o.controller), None)
    return f"{owner.kind}/{owner.name}" if owner is not None else ""


def _too_large(beginning: bytes) -> ReviewResponse:
    uid = admission_review.uid_of(beginning)
    return admission_review.refusal_response(uid, 413, TOO_LARGE)


def _is_json(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"content-type":
            kind: bytes = value.partition(b";")[0].strip().lower()
            return kind == b"application/json"
    return False


def _log_refusal(request: Request[Any], verdict: hold.DenyDecision) -> None:
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
