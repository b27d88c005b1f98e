"""Parsers of setting values: each takes text and returns a value.

A parser raises InvalidInput with the mistake and an example. It never repeats a secret.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from app.core.admission.pod_templates import TemplateKind
from app.core.admission.validation import ValidationRules
from app.core.errors import InvalidInput

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_RESOURCE = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    re.ASCII,
)
_IDENTITY = re.compile(r"[!-~]{1,253}", re.ASCII)
_REDIS_SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")
_REDIS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True, slots=True)
class HostPort:
    """An address to listen on. An empty host means all addresses, port 0 means any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def items(written: str) -> list[str]:
    """Split a comma list. Blanks and empty items are dropped, repeated items count once."""
    return list(dict.fromkeys(item.strip() for item in written.split(",") if item.strip()))


def choice(allowed: Sequence[str]) -> Callable[[str], str]:
    """Return a parser of one of the allowed words."""

    def read(written: str) -> str:
        word = written.strip().lower()
        if word not in allowed:
            raise InvalidInput(f"{_quote(written)} is not valid; use {_either(allowed)}.")
        return word

    return read


def choices(allowed: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of a comma list of the allowed words. The result has their order."""
    one = choice(allowed)

    def read(written: str) -> tuple[str, ...]:
        chosen = {one(item) for item in items(written)}
        if not chosen:
            raise InvalidInput(f"nothing is chosen; use {_either(allowed)}.")
        return tuple(word for word in allowed if word in chosen)

    return read


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of an integer within bounds."""

    def read(written: str) -> int:
        digits = written.strip()
        # Limit the digits: longer numbers are out of every bound, and slow to parse.
        if not re.fullmatch(r"[0-9]{1,9}", digits) or not least <= int(digits) <= most:
            raise InvalidInput(
                f"{_quote(written)} is not valid; use a whole number from {least} to {most}."
            )
        return int(digits)

    return read


def audiences(written: str) -> tuple[str, ...]:
    """Parse a comma list of token audiences."""
    found = items(written)
    for each in found:
        if not _IDENTITY.fullmatch(each):
            raise InvalidInput(
                f"{_quote(each)} is not a token audience; use the client id, without blanks."
            )
    return tuple(found)


def switch(written: str) -> bool:
    """Parse true or false."""
    return choice(("true", "false"))(written) == "true"


def address(written: str) -> HostPort:
    """Parse HOST:PORT, :PORT or [IPv6]:PORT."""
    host, colon, port = written.strip().rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host != bare
    good = bool(colon) and bool(re.fullmatch(r"[0-9]{1,5}", port)) and int(port) <= 65535
    if not good or bracketed != (":" in bare) or re.search(r"[\s/@\[\]]", bare):
        raise InvalidInput(
            f"{_quote(written)} is not an address to listen on; use HOST:PORT such as 0.0.0.0:8443."
        )
    return HostPort(bare, int(port))


def file(written: str) -> Path:
    """Parse the path of an existing, readable file."""
    path = Path(written).expanduser()
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}; use the path of an existing file.")
    if not os.access(path, os.R_OK):
        raise InvalidInput(f"the file {path} cannot be read; allow this user to read it.")
    return path


def folder(written: str) -> Path:
    """Parse the path of a folder. It may not exist yet, such as a volume that is mounted later."""
    path = Path(written).expanduser()
    if path.exists() and not path.is_dir():
        raise InvalidInput(f"{path} is not a folder; use the path of a folder.")
    return path


def label(written: str) -> str:
    """Parse the name of a namespace."""
    if not _LABEL.fullmatch(written):
        raise InvalidInput(
            f"{_quote(written)} is no name of a namespace; "
            "use small letters, digits and dashes, 63 at most."
        )
    return written


def labels(written: str) -> tuple[str, ...]:
    """Parse a comma list of namespaces."""
    return tuple(label(item) for item in items(written))


def name(written: str) -> str:
    """Parse the name of a Kubernetes object: labels joined by dots."""
    if len(written) > 253 or not all(_LABEL.fullmatch(part) for part in written.split(".")):
        raise InvalidInput(
            f"{_quote(written)} is no name of an object; "
            "use small letters, digits, dashes and dots, such as fairgate."
        )
    return written


def names(written: str) -> tuple[str, ...]:
    """Parse a comma list of DNS names and IP addresses."""
    return tuple(_host(item) for item in items(written))


def cluster(written: str) -> str:
    """Parse the name of the cluster. It is part of Redis keys, where braces have a meaning."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9._]{0,61}[a-z0-9])?", written, re.ASCII):
        raise InvalidInput(
            f"{_quote(written)} is not valid; use small letters, digits, dashes, dots, 63 at most."
        )
    return written


def resources(written: str) -> tuple[str, ...]:
    """Parse a comma list of resource names. Each may end with `*`."""
    patterns = tuple(items(written))
    for pattern in patterns:
        # A prefix may end where a name must not, as in nvidia.com/mig-*.
        whole_name = pattern[:-1] + "x" if pattern.endswith("*") else pattern
        if pattern == "*" or not _RESOURCE.fullmatch(whole_name):
            raise InvalidInput(
                f"{_quote(pattern)} is not a resource; use a name such as nvidia.com/gpu, "
                "or the beginning of one and a *."
            )
    if not patterns:
        raise InvalidInput("no resource is named; use at least one, such as nvidia.com/gpu.")
    return patterns


def rules(written: str) -> ValidationRules:
    """Parse the rules of the webhook, a JSON object. Absent keys have their defaults."""
    usual = ValidationRules()
    try:
        read = json.loads(written)
        re.compile(read.get("paths", ""))
    except (ValueError, AttributeError, TypeError, re.error) as error:
        raise InvalidInput(
            f"{_quote(written)} is not valid ({error}); use a JSON object such as "
            '{"schedulers": ["default-scheduler"]}.'
        ) from error
    for key, value in read.items():
        known = getattr(usual, key) if key in ValidationRules.__slots__ else None
        if known is None:
            raise InvalidInput(f"there is no rule {_quote(key)}; leave it out.")
        if type(value) is not (list if isinstance(known, tuple) else type(known)):
            raise InvalidInput(f"{key}: {_quote(str(value))} is not valid; use as in {known!r}.")
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in read.items()}
    return ValidationRules(**fields)


def templates(written: str) -> tuple[TemplateKind, ...]:
    """Parse a comma list of GROUP/RESOURCE=PATH. The core group is empty."""
    kinds = []
    for item in items(written):
        name, _, path = item.partition("=")
        group, slash, resource = name.rpartition("/")
        if not (slash and resource and path):
            raise InvalidInput(
                f"{_quote(item)} names no kind with a pod template; use GROUP/RESOURCE=PATH, "
                "such as batch/jobs=spec.template."
            )
        kinds.append(TemplateKind(group, resource, path))
    return tuple(kinds)


@dataclass(frozen=True, slots=True)
class DeviceClassSetting:
    """A device class, and the resource that its devices count as."""

    name: str
    resource: str

    def __str__(self) -> str:
        return f"{self.name}={self.resource}"


def device_classes(written: str) -> tuple[DeviceClassSetting, ...]:
    """Parse a comma list of CLASS=RESOURCE."""
    classes: dict[str, DeviceClassSetting] = {}
    for item in items(written):
        class_name, equals, resource = (part.strip() for part in item.partition("="))
        if not equals or not _RESOURCE.fullmatch(resource):
            raise InvalidInput(
                f"{_quote(item)} is not valid; use CLASS=RESOURCE such as "
                "gpu.nvidia.com=nvidia.com/gpu."
            )
        if name(class_name) in classes:
            raise InvalidInput(f"{_quote(class_name)} is named twice; name each class once.")
        classes[class_name] = DeviceClassSetting(class_name, resource)
    return tuple(classes.values())


def redis_url(written: str) -> str:
    """Parse the URL of Redis. Errors do not repeat it, because it may contain a password."""
    url = written.strip()
    try:
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition("@")[2]
        if not parts.scheme.endswith("+sentinel"):
            parts.port  # noqa: B018  raises ValueError for a port that is none
    except ValueError:
        hosts = ""
        parts = urlsplit("")
    if parts.scheme not in _REDIS_SCHEMES or not hosts:
        raise InvalidInput(
            "this is not a URL of Redis; use redis://HOST:6379/0, rediss://HOST:6379/0 "
            "or redis+sentinel://HOST:26379,HOST:26379/MASTER/0."
        )
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        # Other options of the library would change time-outs and retries, or disable verification.
        if name not in _REDIS_FILES or not parts.scheme.startswith("rediss"):
            raise InvalidInput(
                "the URL has an option that Fairgate does not take; only a rediss:// URL may have "
                f"any, and only files: {', '.join(_REDIS_FILES)}."
            )
        file(value)
    return url


def http_url(written: str) -> str:
    """Parse an HTTP URL. Errors do not repeat it, because it may contain a password."""
    url = written.strip()
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  raises ValueError for a port that is none
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise InvalidInput("this is not a URL of a server; use http://HOST:9090.")
    return url


def identity(written: str) -> str:
    """Parse the name of a process."""
    if not _IDENTITY.fullmatch(written):
        raise InvalidInput(f"{_quote(written)} is not valid; use plain characters, no blanks.")
    return written


def own_identity() -> str:
    """Return a unique process name, even if another process reuses this host and pid."""
    host = re.sub(r"[^!-~]", "-", socket.gethostname())[:200]
    return f"{host}_{os.getpid()}-{secrets.token_hex(3)}"


def show(value: object) -> str:
    """Return a value as it would be written, without passwords."""
    if value is None:
        return ""
    if isinstance(value, TemplateKind):
        return f"{value.group}/{value.resource}={value.path}"
    if isinstance(value, ValidationRules):
        return json.dumps(asdict(value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(show, value))
    if isinstance(value, str) and "://" in value:
        return without_password(value)
    return str(value)


def without_password(url: str) -> str:
    """Return the URL without user, password and query."""
    parts = urlsplit(url)
    login, at, hosts = parts.netloc.rpartition("@")
    shown = "***@" + hosts if login or at else hosts
    return urlunsplit((parts.scheme, shown, parts.path, "***" if parts.query else "", ""))


def _host(written: str) -> str:
    try:
        return str(ipaddress.ip_address(written))
    except ValueError:
        pass
    if len(written) > 253 or not all(
        _LABEL.fullmatch(part) for part in written.lower().removeprefix("*.").split(".")
    ):
        raise InvalidInput(
            f"{_quote(written)} is neither a DNS name nor an IP address; "
            "use names such as fairgate-webhook.fairgate-system.svc."
        )
    return written.lower()


def _quote(written: str) -> str:
    return repr(written[:80])


def _either(allowed: Sequence[str]) -> str:
    return f"{', '.join(allowed[:-1])} or {allowed[-1]}"
