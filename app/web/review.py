"""The AdmissionReview on the wire: bytes to a typed request, a verdict to bytes.

Formats only (`admission.k8s.io/v1`); what is decided is decided in `core.admission.gate`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, assert_never

import msgspec

from app.core.admission import gate
from app.wire import AdmissionRequest, AdmissionReview

Request = AdmissionRequest
T = TypeVar("T")

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
MOST_WARNINGS = 16
LONGEST_WARNING = 120
"""The API server advises 120 characters a warning, and drops what is beyond 4096 in all."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_UID = re.compile(
    rb'\s*\{(?:\s*"(?:kind|apiVersion)"\s*:\s*"[^"\\]{0,100}"\s*,){0,2}'
    rb'\s*"request"\s*:\s*\{\s*"uid"\s*:\s*"([0-9A-Za-z._-]{1,128})"'
)
"""The beginning of a review as API servers write it. Anchored and bounded: it reads no further."""


class Unreadable(Exception):
    """The body is no review of a pod; `uid` is the request's, "" if it cannot be told."""

    def __init__(self, message: str, uid: str) -> None:
        super().__init__(message)
        self.uid = uid


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, and what it counts as."""

    status: int
    body: bytes
    decision: str
    kind: bytes = TEXT

    @property
    def head(self) -> list[tuple[bytes, bytes]]:
        """The HTTP headers."""
        length = str(len(self.body)).encode()
        return [(b"content-type", self.kind), (b"content-length", length)]


class _UidOnly(msgspec.Struct):
    uid: str


class _Envelope(msgspec.Struct):
    request: _UidOnly


_envelope = msgspec.json.Decoder(_Envelope)
_encoder = msgspec.json.Encoder()
_BROKEN = (msgspec.DecodeError, RecursionError, UnicodeError)
_UNREADABLE = "Fairgate cannot read this review: {}."


def reader(kind: type[T]) -> Callable[[bytes | bytearray], Request[T]]:
    """Return what reads reviews of objects of a kind. It raises Unreadable."""
    review = msgspec.json.Decoder(AdmissionReview[kind])  # type: ignore[valid-type]

    def decode(body: bytes | bytearray) -> Request[T]:
        try:
            decoded = review.decode(body)
        except msgspec.ValidationError as error:
            # It is JSON, but not of the shape it should have: whoever sent it should hear of it.
            raise Unreadable(_UNREADABLE.format(error), uid_of(body)) from error
        except _BROKEN as error:
            raise Unreadable(_UNREADABLE.format(error), "") from error
        if decoded.kind != "AdmissionReview" or decoded.api_version != "admission.k8s.io/v1":
            message = "Fairgate reads AdmissionReview of admission.k8s.io/v1 only."
            raise Unreadable(message, decoded.request.uid)
        if not decoded.request.uid:
            raise Unreadable("Fairgate cannot answer a review without request.uid.", "")
        return decoded.request

    return decode


def uid_of(body: bytes | bytearray) -> str:
    """Return the uid of a request otherwise unreadable or cut short; "" if there is none."""
    begins = _UID.match(body)
    if begins:
        return begins[1].decode("ascii")
    try:
        return _envelope.decode(body).request.uid
    except _BROKEN:
        return ""


def encode(uid: str, verdict: gate.Verdict) -> Answer:
    """Return the answer that carries a verdict."""
    match verdict:
        case gate.Ignore(warnings):
            return _answer(_pass(uid, [], warnings), "ignore")
        case gate.Hold(patch, warnings):
            return _answer(_pass(uid, patch, warnings), "hold")
        case gate.Mend(patch, warnings, observed):
            return _answer(_pass(uid, patch, warnings), observed or ("mend" if patch else "ignore"))
        case gate.Refuse(code, message):
            return refuse(uid, code, message)
    assert_never(verdict)


def refuse(uid: str, code: int, message: str) -> Answer:
    """Return a refusal: as a review if the uid is known, else as a plain HTTP answer."""
    decision = "error" if code in (400, 413) or code >= 500 else "refuse"
    message = _clean(message)
    if not uid:
        return Answer(code if code < 500 else 400, message.encode(), decision)
    status: dict[str, Any] = {"code": code, "message": message}
    if code == 503:  # the API server makes it Retry-After, which kubectl and controllers heed
        status["details"] = {"retryAfterSeconds": 1}
    return _answer({"uid": uid, "allowed": False, "status": status}, decision)


def _pass(uid: str, patch: gate.Patch, warnings: tuple[str, ...]) -> dict[str, Any]:
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(_encoder.encode(patch)).decode("ascii")
    if warnings:
        response["warnings"] = [_shorten(warning) for warning in warnings[:MOST_WARNINGS]]
    return response


def _answer(response: dict[str, Any], decision: str) -> Answer:
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    return Answer(200, _encoder.encode(review), decision, JSON)


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST_WARNING else text[: LONGEST_WARNING - 1] + "…"


def _clean(text: str) -> str:
    """Return text that UTF-8 can carry."""
    return _SURROGATE.sub("�", text)
