"""The command line: exit codes, sentences, and a help that comes at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from app.cli import _outcome
from app.core.errors import (
    ClusterUnavailable,
    FairgateError,
    InvalidQuantity,
    StoreUnavailable,
    ToolMissing,
)


def fairgate(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FAIRGATE_")}
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        env=environment | variables,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SystemExit(0), 0),
        (SystemExit(None), 0),
        (SystemExit(1), 1),
        (InvalidQuantity("x"), 2),
        (ToolMissing("x"), 3),
        (ClusterUnavailable("x"), 3),
        (StoreUnavailable("x"), 3),
        (KeyError("x"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_the_exit_code_tells_what_happened(error: BaseException, code: int) -> None:
    assert _outcome(raising(error)) == code


def test_an_error_is_one_sentence_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    _outcome(raising(FairgateError("Redis at redis:6379 does not answer; start it.")))

    assert capsys.readouterr() == ("", "fairgate: Redis at redis:6379 does not answer; start it.\n")


def test_a_defect_says_how_to_see_where(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logging.root.handlers", [])
    _outcome(raising(ValueError("odd")))
    told = capsys.readouterr().err
    assert "ValueError: odd" in told
    assert "FAIRGATE_DEBUG=1" in told
    assert "Traceback" not in told

    monkeypatch.setenv("FAIRGATE_DEBUG", "1")
    _outcome(raising(ValueError("odd")))
    assert "Traceback" in capsys.readouterr().err


def test_help_does_not_wait_for_heavy_imports() -> None:
    script = (
        "import sys, app.cli; "
        "heavy = {'fastapi', 'kubernetes', 'redis', 'cryptography', 'uvicorn', 'msgspec'}; "
        "print(*(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)

    assert done.stdout == b"\n"


def test_help_lists_every_command() -> None:
    done = fairgate("--help")

    assert done.returncode == 0
    assert "serve" in done.stdout
    assert "dev" in done.stdout


def test_check_settings_prints_them_all_without_a_password() -> None:
    done = fairgate("serve", "--check-settings", FAIRGATE_REDIS_URL="redis://:s3cret@h:1/0")

    assert done.returncode == 0
    assert "FAIRGATE_MANAGED_RESOURCES" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr


def test_roles_may_be_repeated_or_separated_by_commas() -> None:
    for arguments in (["--role", "webhook", "--role", "api"], ["--role", "api,webhook"]):
        done = fairgate("serve", "--check-settings", *arguments, "--redis-url", "redis://h:1/0")

        assert done.stdout.splitlines()[0].split()[-1] == "webhook,api"


def test_every_mistake_in_the_settings_is_told_at_once() -> None:
    done = fairgate("serve", "--lease-seconds", "soon", FAIRGATE_LOG_LEVEL="loud")

    assert done.returncode == 2
    assert done.stdout == ""
    for named in ("--lease-seconds", "FAIRGATE_LOG_LEVEL", "--redis-url"):
        assert named in done.stderr


def test_wrong_usage_exits_with_2() -> None:
    assert fairgate("serve", "--no-such-flag").returncode == 2
    assert fairgate("no-such-command").returncode == 2
