"""Logs: one JSON object per line, with facts and errors as fields."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.config import logging as log_config

log = logging.getLogger("fairgate.test")


@pytest.fixture
def written() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    log_config.set_up("info", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers[:] = handlers
    root.setLevel(level)


Written = Callable[[], list[dict[str, Any]]]


def test_log_line_is_one_json_object_with_its_facts(written: Written) -> None:
    log.info("held a pod", extra={"pod": "p", "position": 3})

    [line] = written()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "info",
        "logger": "fairgate.test",
        "message": "held a pod",
        "facts": {"pod": "p", "position": 3},
    }


def test_an_exception_is_a_field_on_the_same_line(written: Written) -> None:
    try:
        raise ValueError("odd")
    except ValueError:
        log.exception("failed")

    [line] = written()
    assert (line["error"]["type"], line["error"]["message"]) == ("ValueError", "odd")
    assert "Traceback" in line["error"]["traceback"]


def test_no_value_can_break_a_line(written: Written) -> None:
    log.info("odd", extra={"text": "a\nb\ud800", "object": object(), "number": float("nan")})

    assert len(written()) == 1


def test_log_levels_below_the_configured_one_are_omitted(written: Written) -> None:
    log.debug("quiet")
    logging.getLogger("uvicorn.error").info("started server process")

    assert written() == []


def test_a_person_reads_short_lines() -> None:
    record = logging.makeLogRecord(
        {"name": "fairgate.web", "levelname": "INFO", "msg": "serving", "port": 8443}
    )

    assert log_config.Human().format(record)[8:] == " web: serving  port=8443"
