"""HTTP client of the REST API: requests, pagination and error messages.

It never repeats a write, and follows no redirects.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlencode

import urllib3

from app.core.errors import ClusterRefused, ClusterUnavailable, InvalidInput

CONNECT_SECONDS, READ_SECONDS = 5.0, 60.0
LARGEST_PAGE = 500

UNAUTHORIZED, TOO_MANY = 401, 429
PATIENCE, LONGEST_WAIT = 5, 5.0
"""Retries of a read after status 429, and the longest `Retry-After` in seconds that it obeys."""

AGGREGATED = "/apis/api.fairgate.io/v1"
DIRECT = "/v1"

Query = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """An answer: the body, the server's time, the age of the data in seconds, and warnings."""

    body: bytes
    at: datetime
    age: float
    warnings: tuple[str, ...] = ()

    def with_warning(self, warning: str) -> ApiAnswer:
        """Return this answer with one more warning. An equal one is not repeated."""
        return replace(self, warnings=tuple(dict.fromkeys((*self.warnings, warning))))

    def as_object(self) -> Any:
        """Return the body as a JSON object. Raises ClusterUnavailable if it is anything else."""
        try:
            found = json.loads(self.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ClusterUnavailable(
                "What answered is not Fairgate's API; see whether the address is the right one."
            )
        return found


class ApiClient:
    """The client. `host`: a URL without path. `root`: the path prefix of the routes."""

    def __init__(
        self,
        pool: urllib3.PoolManager,
        host: str,
        root: str,
        headers: Callable[[], list[tuple[str, str]]],
        namespace: str,
    ) -> None:
        self._pool = pool
        self._host = host
        self._root = root
        self._headers = headers
        self.namespace = namespace

    @property
    def aggregated(self) -> bool:
        """Return whether requests go through the API server."""
        return self._root == AGGREGATED

    def get(self, path: str, query: Query = ()) -> ApiAnswer:
        """Send a GET request. Wait and retry after status 429. Raises ClusterError."""
        return self._retry("GET", path, query, None)

    def post_query(self, path: str, body: Any) -> ApiAnswer:
        """Send a POST request that changes nothing. Retry like `get`. Raises ClusterError."""
        return self._retry("POST", path, (), json.dumps(body).encode())

    def send(self, method: str, path: str, body: Any, query: Query = ()) -> ApiAnswer:
        """Send a write. Raises ClusterError; it may have taken effect if ClusterUnavailable."""
        return self._send_request(method, f"{self._root}{path}", query, json.dumps(body).encode())

    def list_pages(
        self, path: str, query: Query = (), limit: int | None = None
    ) -> tuple[Any, ApiAnswer]:
        """Read a list of up to `limit` items page by page. Return one list and the last answer.

        The list has the `continue` token of the last page if there are more items.
        """
        whole: Any = None
        while True:
            token = (whole.get("continue") or "") if whole else ""
            had = len(whole["items"]) if whole else 0
            size = LARGEST_PAGE if limit is None else min(limit - had, LARGEST_PAGE)
            asked = [*query, ("limit", str(size)), *([("continue", token)] if token else [])]
            answer = self.get(path, asked)
            page = answer.as_object()
            if whole is not None:
                page["items"] = whole["items"] + page["items"]
            whole = page
            if not whole.get("continue") or (limit is not None and len(whole["items"]) >= limit):
                return whole, answer

    def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> urllib3.BaseHTTPResponse:
        """Send a request and return its answer unread, whatever its status.

        The caller's credentials replace those in `headers`. Raises ClusterUnavailable.
        """
        sent = urllib3.HTTPHeaderDict(headers)
        for name, value in self._headers():
            sent[name] = value
        try:
            return self._pool.request(
                method,
                f"{self._host}{self._root}{path}",
                body=body,
                headers=sent,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS),
                retries=False,
                redirect=False,
                preload_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise self._unreachable_error(error) from error

    def get_kubernetes(self, path: str, query: Query = ()) -> ApiAnswer:
        """Read a path of the API server itself. Requires `aggregated`."""
        return self._send_request("GET", path, query, None)

    def dry_run(self, path: str, body: Any) -> ApiAnswer:
        """Create an object in the API server with `dryRun=All`. Requires `aggregated`."""
        return self._send_request("POST", path, [("dryRun", "All")], json.dumps(body).encode())

    def _retry(self, method: str, path: str, query: Query, body: bytes | None) -> ApiAnswer:
        for _ in range(PATIENCE):
            try:
                return self._send_request(method, f"{self._root}{path}", query, body)
            except ClusterRefused as error:
                if error.status != TOO_MANY or not 0 < (error.retry_after or 0) <= LONGEST_WAIT:
                    raise
                time.sleep(error.retry_after or 0)
        return self._send_request(method, f"{self._root}{path}", query, body)

    def _send_request(self, method: str, path: str, query: Query, body: bytes | None) -> ApiAnswer:
        asked = urlencode(list(query))
        url = f"{self._host}{path}" + (f"?{asked}" if asked else "")
        headers = urllib3.HTTPHeaderDict({"Accept": "application/json", "User-Agent": "fairgate"})
        headers.extend(self._headers())
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            answer = self._pool.request(
                method,
                url,
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS),
                retries=False,
                redirect=False,
            )
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise self._unreachable_error(error) from error
        if answer.status >= 300:
            raise self._refused_error(answer, path)
        return ApiAnswer(
            answer.data,
            _date(answer.headers),
            _seconds(answer.headers) or 0.0,
            _warnings(answer.headers.getlist("Warning")),
        )

    def _unreachable_error(self, error: Exception) -> ClusterUnavailable:
        if isinstance(error, (urllib3.exceptions.SSLError, ssl.SSLError)):
            return ClusterUnavailable(
                f"No trust in the TLS of {self._host} ({_reason(error)}); "
                + (
                    "see the certificates in your kubeconfig."
                    if self.aggregated
                    else "name the CA that signed its certificate by --certificate-authority."
                )
            )
        return ClusterUnavailable(
            f"{self._host} does not answer ({_reason(error)}); see whether the address is right "
            "and can be reached from here."
        )

    def _refused_error(
        self, answer: urllib3.BaseHTTPResponse, path: str
    ) -> ClusterRefused | ClusterUnavailable:
        sentence, ours = self._error_message(answer, path)
        status = answer.status
        # A 500 from Fairgate is a defect of Fairgate; any other comes from a proxy between.
        if status > 500 or (status == 500 and not ours):
            return ClusterUnavailable(sentence)
        return ClusterRefused(sentence, status, _seconds(answer.headers, "Retry-After"))

    def _error_message(self, answer: urllib3.BaseHTTPResponse, path: str) -> tuple[str, bool]:
        """Return the error message, and whether Fairgate itself sent it."""
        try:
            said = json.loads(answer.data)
        except ValueError:
            said = None
        if isinstance(said, dict) and isinstance(said.get("detail"), str):
            return _line(said["detail"]), True
        message = said.get("message") if isinstance(said, dict) else None
        why = _line(str(message or answer.reason or f"status {answer.status}"))
        if not self.aggregated:
            return (
                f"{self._host} answered {answer.status} ({why}), as Fairgate does not; "
                "see whether --server names Fairgate's API."
            ), False
        if not path.startswith(self._root) and answer.status != UNAUTHORIZED:
            return why, False  # the API server's own message about one of its own objects
        return self._status_message(answer.status, why), False

    def _status_message(self, status: int, why: str) -> str:
        match status:
            case 401:
                return (
                    "The cluster does not accept your credentials; log in again, or name others "
                    "by --context or --kubeconfig."
                )
            case 403:
                return f"The cluster does not let you reach Fairgate's API: {why}"
            case 404:
                return (
                    f"The cluster at {self._host} has no Fairgate API; see whether Fairgate is "
                    "installed there (kubectl get apiservice v1.api.fairgate.io), or "
                    "name its URL by --server."
                )
        return (
            f"The cluster could not pass this on to Fairgate ({why}); "
            "kubectl get apiservice v1.api.fairgate.io shows why."
        )


def segment(text: str) -> str:
    """Return a name, quoted as one path segment. Raises InvalidInput.

    The HTTP client would leave out a segment `..` together with the one before it.
    """
    if not text:
        raise InvalidInput("A name is empty; write it, or set the variable that should contain it.")
    if text in (".", ".."):
        raise InvalidInput(f"{text!r} is not a name; write the name of an object.")
    return quote(text, safe="")


def _line(text: str) -> str:
    return " ".join(text.split())


def _reason(error: Exception) -> str:
    text = _line(str(error)) or type(error).__name__
    last = text.rpartition(": ")[2]
    if last.startswith("[") and "] " in last:
        last = last.partition("] ")[2]
    return last.rstrip(".)") if len(last) > 3 else text


def _warnings(headers: Iterable[str]) -> tuple[str, ...]:
    """Return the texts of `Warning` headers: 299 - "text"."""
    texts = (_line(each.partition('"')[2].rpartition('"')[0]) for each in headers)
    return tuple(each.replace('\\"', '"') for each in texts if each)


def _date(headers: Mapping[str, str]) -> datetime:
    """Return the server's time of the answer, because the local clock may be wrong."""
    try:
        return parsedate_to_datetime(headers.get("Date", ""))
    except ValueError:
        return datetime.now(timezone.utc)


def _seconds(headers: Mapping[str, str], name: str = "Fairgate-Age") -> float | None:
    text = headers.get(name, "")
    try:
        return float(text)
    except ValueError:
        return None
