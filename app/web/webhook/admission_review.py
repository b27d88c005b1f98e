"""Decodes AdmissionReviews into typed requests, and encodes decisions (`admission.k8s.io/v1`)."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, assert_never

import msgspec

from app.core import release_patch
from app.core.admission import hold
from app.core.safe_text import escape_hidden
from app.k8s_types.admission import AdmissionRequest, AdmissionReview
from app.k8s_types.objects import without_nulls

Request = AdmissionRequest
T = TypeVar("T")

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
OBJECTS = ("object", "oldObject")
MOST_WARNINGS = 16
LONGEST_WARNING = 256
"""If all warnings have more than 4096 characters, the API server cuts each after 256."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_UID = re.compile(
    rb'\s*\{(?:\s*"(?:kind|apiVersion)"\s*:\s*"[^"\\]{0,100}"\s*,){0,2}'
    rb'\s*"request"\s*:\s*\{\s*"uid"\s*:\s*"([0-9A-Za-z._-]{1,128})"'
)
"""The beginning of a review in the form of API servers. Anchored and bounded, so it stays fast."""


class Unreadable(Exception):
    """The body is no valid review. `uid`: the request's uid, empty string if unknown."""

    def __init__(self, message: str, uid: str) -> None:
        super().__init__(message)
        self.uid = uid


@dataclass(frozen=True, slots=True)
class ReviewResponse:
    """An HTTP answer. `decision`: the label of its metric."""

    status: int
    body: bytes
    decision: str
    content_type: bytes = TEXT

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The HTTP headers."""
        length = str(len(self.body)).encode()
        return [(b"content-type", self.content_type), (b"content-length", length)]


class _UidOnly(msgspec.Struct):
    uid: str


class _Envelope(msgspec.Struct):
    request: _UidOnly


_envelope = msgspec.json.Decoder(_Envelope)
_encoder = msgspec.json.Encoder()
_BROKEN = (msgspec.DecodeError, RecursionError, UnicodeError)
_UNREADABLE = "Fairgate: cannot read this review: {}."


def review_decoder(kind: type[T]) -> Callable[[bytes | bytearray], Request[T]]:
    """Return a decoder of reviews with objects of this type. It raises Unreadable."""
    review = msgspec.json.Decoder(AdmissionReview[kind])  # type: ignore[valid-type]

    def decode(body: bytes | bytearray) -> Request[T]:
        try:
            try:
                decoded = review.decode(body)
            except msgspec.ValidationError:
                document = _without_nulls(body, kind == dict[str, Any])
                decoded = msgspec.convert(document, AdmissionReview[kind])  # type: ignore[valid-type]
        except msgspec.ValidationError as error:
            # Valid JSON of a wrong shape: answer with the uid, so that the sender gets the reason.
            raise Unreadable(_UNREADABLE.format(error), uid_of(body)) from error
        except _BROKEN as error:
            raise Unreadable(_UNREADABLE.format(error), "") from error
        if decoded.kind != "AdmissionReview" or decoded.api_version != "admission.k8s.io/v1":
            message = "Fairgate reads AdmissionReview of admission.k8s.io/v1 only."
            raise Unreadable(message, decoded.request.uid)
        if not decoded.request.uid:
            raise Unreadable("Fairgate: cannot answer a review without request.uid.", "")
        return decoded.request

    return decode


def _without_nulls(body: bytes | bytearray, is_raw: bool) -> Any:
    """Return a review without null values. If `is_raw`, its objects stay unchanged."""
    document = msgspec.json.decode(body)
    bare = without_nulls(document)
    if is_raw and isinstance(bare, dict) and isinstance(bare.get("request"), dict):
        written = document["request"]
        bare["request"] |= {key: written[key] for key in OBJECTS if key in written}
    return bare


def uid_of(body: bytes | bytearray) -> str:
    """Return the uid of an invalid or truncated request; empty string if it has no uid."""
    begins = _UID.match(body)
    if begins:
        return begins[1].decode("ascii")
    try:
        return _envelope.decode(body).request.uid
    except _BROKEN:
        return ""


def encode_response(uid: str, verdict: hold.HoldVerdict) -> ReviewResponse:
    """Return the answer for a decision."""
    match verdict:
        case hold.IgnoreDecision(warnings):
            return _review_response(_allow_response(uid, [], warnings), "ignore")
        case hold.HoldDecision(patch, warnings):
            return _review_response(_allow_response(uid, patch, warnings), "hold")
        case hold.PatchDecision(patch, warnings, observed):
            return _review_response(
                _allow_response(uid, patch, warnings), observed or ("mend" if patch else "ignore")
            )
        case hold.DenyDecision(code, message):
            return refusal_response(uid, code, message)
    assert_never(verdict)


def refusal_response(uid: str, code: int, message: str) -> ReviewResponse:
    """Return a refusal: a review if the uid is known, otherwise a plain HTTP answer."""
    decision = "error" if code in (400, 413) or code >= 500 else "refuse"
    message = _clean(message)
    if not uid:
        return ReviewResponse(code if code < 500 else 400, message.encode(), decision)
    status: dict[str, Any] = {"code": code, "message": message}
    if code == 503:  # the API server sends it as Retry-After, which kubectl and controllers obey
        status["details"] = {"retryAfterSeconds": 1}
    return _review_response({"uid": uid, "allowed": False, "status": status}, decision)


def _allow_response(
    uid: str, patch: release_patch.Patch, warnings: tuple[str, ...]
) -> dict[str, Any]:
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(_encoder.encode(patch)).decode("ascii")
    if warnings:
        response["warnings"] = [_shorten(_clean(warning)) for warning in warnings[:MOST_WARNINGS]]
    return response


def _review_response(response: dict[str, Any], decision: str) -> ReviewResponse:
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    return ReviewResponse(200, _encoder.encode(review), decision, JSON)


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST_WARNING else text[: LONGEST_WARNING - 1] + "…"


def _clean(text: str) -> str:
    """Return text without surrogates and hidden characters."""
    return escape_hidden(_SURROGATE.sub("�", text))
