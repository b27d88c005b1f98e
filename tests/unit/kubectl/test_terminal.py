"""`kubectl-fairgate` as a program: watching, a real terminal, completion, help, start-up."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.kubectl.cli import main
from tests.support import kubectl_answers as answers
from tests.support.command_line import run
from tests.support.rest_server import Rest, serving

ROOT = Path(__file__).parents[3]
AUDIT_TYPES = ["released", "reclaimed", "refused", "restored"]
COMPLETER = "from app.kubectl.completion import main; main()"


@pytest.fixture
def rest() -> Iterator[Rest]:
    small = Rest(
        {
            "GET /tenants": answers.tenants(),
            "GET /tenants/team-a/queue": answers.queue(),
            "GET /pools": answers.pools(),
        }
    )
    with serving(small):
        yield small


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FAIRGATE_", "COLUMNS"))}
    return kept | {"FAIRGATE_TOKEN": "alices", "NO_PROXY": "*", "TZ": "UTC", "HOME": "/"} | more


def plugin(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.kubectl", *words],
        cwd=ROOT,
        env=environment(**more),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def completed(*words: str, **more: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", COMPLETER, *words],
        cwd=ROOT,
        env=environment(**more),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_help_without_arguments_lists_commands_and_examples() -> None:
    done = plugin()
    for command in ("queue", "why", "tenants", "pools", "usage", "weights", "simulate"):
        assert f" {command} " in done.stdout
    assert "Examples:\n  kubectl fairgate why train-0 -n team-a\n" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        *("queue", "why", "tenants", "pools", "usage", "weights", "weights set", "simulate"),
        *("shares", "quotas", "audit", "open", "version"),
    ],
)
def test_help_gives_examples(command: str) -> None:
    done = run(main, *command.split(), "--help", COLUMNS="200")
    assert done.returncode == 0
    assert f"kubectl fairgate {command}" in re.split("Examples?:", done.stdout)[1]


def test_wrong_usage_exits_with_2() -> None:
    assert plugin("queues").returncode == 2
    assert run(main, "why").returncode == 2
    unknown = run(main, "pools", "-o", "xml")
    assert unknown.returncode == 2
    assert "Invalid value for '--output' / '-o': 'xml' is not one of 'table'" in unknown.stderr


def test_help_does_not_wait_for_heavy_imports() -> None:
    script = (
        "import sys, app.kubectl.cli; "
        "heavy = {'kubernetes', 'urllib3', 'yaml', 'pydantic', 'fastapi', 'rich.live', 'ssl'}; "
        "print(*(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True)
    assert done.stdout == b"\n"


def test_watch_prints_changes_and_ctrl_c_exits_with_0(rest: Rest) -> None:
    full, paused = answers.pools(), answers.pools()
    paused.items[0].paused = True
    rest.answers["GET /pools"] = [full, full, paused]
    with subprocess.Popen(
        [sys.executable, "-m", "app.kubectl", "pools", "--watch", "--server", rest.url],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(3)]
        again = [process.stdout.readline() for _ in range(4)]
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == ""
        assert process.wait(timeout=30) == 0
    assert "paused" not in first[1]
    assert again[0] == "\n"
    assert "paused" in again[2]
    assert len(rest.asked) >= 3


def test_a_watch_prints_each_new_warning_once(rest: Rest) -> None:
    rest.headers["Warning"] = '299 - "No controller leads."'
    rest.refuse("GET /pools", 403, "No more.")  # ends the watch
    full = answers.pools()
    rest.answers["GET /pools"] = [full, full, rest.answers["GET /pools"]]
    done = subprocess.run(
        [sys.executable, "-m", "app.kubectl", "pools", "--watch", "--server", rest.url],
        cwd=ROOT,
        env=environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    first, *others = done.stderr.splitlines()
    assert first == "fairgate: No controller leads."
    assert not any("leads" in line for line in others)


def test_a_watch_in_a_terminal_shows_warnings_below_the_table(rest: Rest) -> None:
    rest.headers["Warning"] = '299 - "No controller leads. Releases are paused for now."'
    rest.refuse("GET /pools", 403, "No more.")  # ends the watch
    rest.answers["GET /pools"] = [answers.pools(), rest.answers["GET /pools"]]
    shown = in_terminal(40, "pools", "--watch", "--server", rest.url, code=1)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert plain.index("h100") < plain.index("No controller leads.")
    assert "for now." in plain


def test_a_watch_in_a_terminal_escapes_hidden_characters_of_an_error(rest: Rest) -> None:
    rest.refuse("GET /pools", 429, "a\u202eb asks too often.")
    busy = rest.answers["GET /pools"]
    rest.refuse("GET /pools", 403, "No more.")  # ends the watch
    rest.answers["GET /pools"] = [answers.pools(), busy, rest.answers["GET /pools"]]
    shown = in_terminal(80, "pools", "--watch", "--server", rest.url, code=1)
    assert "a\\u202eb asks too often. Trying again; Ctrl-C ends it." in shown


def test_watch_continues_after_429(rest: Rest) -> None:
    rest.refuse("GET /pools", 429, "Ask less often.")
    busy = rest.answers["GET /pools"]
    changed = answers.pools()
    changed.items.pop()
    rest.answers["GET /pools"] = [answers.pools(), busy, changed]
    with subprocess.Popen(
        [sys.executable, "-m", "app.kubectl", "pools", "-w", "-o", "json", "--server", rest.url],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        seen = ""
        while seen.count('"h100"') < 2:
            line = process.stdout.readline()
            assert line
            seen += line
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(timeout=30) == 0
    assert seen.count('"t4"') == 1


def in_terminal(columns: int, *words: str, code: int = 0, **more: str) -> str:
    """Run in a terminal of this width; return the output. `code`: the expected exit code."""
    ours, theirs = pty.openpty()
    pty_size(theirs, columns)
    process = subprocess.Popen(
        [sys.executable, "-m", "app.kubectl", *words],
        cwd=ROOT,
        env=environment(**{"TERM": "xterm-256color"} | more),
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait(timeout=60) == code
    return shown.decode().replace("\r\n", "\n")


def pty_size(terminal: int, columns: int) -> None:
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))


def test_a_terminal_gets_colour_and_lines_as_wide_as_it_is(rest: Rest) -> None:
    shown = in_terminal(80, "queue", "--server", rest.url)
    assert "\x1b[1m" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert max(map(len, plain.splitlines())) <= 80
    for part in ("3/41", "16 gpu", "12-20 min", "Left out: FOR;"):
        assert part in plain
    assert "\x1b[" not in in_terminal(80, "queue", "--server", rest.url, TERM="dumb")


def test_a_watch_crops_lines_that_are_wider_than_the_terminal(rest: Rest) -> None:
    """A line that continued on the next one would stay there after the next answer."""
    path = "GET /tenants/team-a/queue"
    rest.refuse(path, 403, "No more.")  # ends the watch
    rest.answers[path] = [answers.queue(), rest.answers[path]]
    words = ("queue", "team-a", "--watch", "-o", "wide", "--server", rest.url)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", in_terminal(40, *words, code=1))
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "\n", shown).splitlines()
    rows = [line for line in lines if line.strip()]
    assert max(map(len, rows)) <= 40
    assert {row.split()[0] for row in rows} == {"USER", "alice@example.com", "bob"}


def test_kubectl_completes_commands_tenants_and_options(rest: Rest) -> None:
    assert completed("que") == ["queue\tShow what waits: each user's place, what...", ":4"]
    assert completed("queue", "--server", rest.url, "team") == ["team-a", "team-b", ":4"]
    assert completed("weights", "set", "--server", rest.url, "r") == ["research", ":4"]
    formats = ["table", "wide", "json", "yaml", "csv", "name"]
    assert completed("pools", "-o", "") == [*formats, ":4"]
    assert completed("audit", "--type", "re") == [*AUDIT_TYPES, ":4"]
    assert completed("why", "--kubeconfig", "") == ["", ":0"]


def test_kubectl_completes_pods_that_wait(rest: Rest, tmp_path: Path) -> None:
    pods = {"items": [{"metadata": {"name": name}} for name in ("train-0", "train-1", "eval")]}
    rest.raw["GET /api/v1/namespaces/team-a/pods"] = pods
    config = tmp_path / "config"
    config.write_text(
        f"""{{current-context: x, contexts: [{{name: x, context: {{cluster: c, user: u}}}}],
        clusters: [{{name: c, cluster: {{server: "{rest.url}"}}}}],
        users: [{{name: u, user: {{token: t}}}}]}}"""
    )
    words = ("why", "--kubeconfig", str(config), "-n", "team-a")
    assert completed(*words, "tr") == ["train-0", "train-1", ":4"]
    assert completed(*words, "pod/") == ["", ":4"]


def test_completion_is_empty_if_the_server_is_unreachable() -> None:
    assert completed("queue", "--server", "http://127.0.0.1:1", "") == ["", ":4"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_script_for_the_program_itself(shell: str) -> None:
    done = plugin("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode == 0
    assert "kubectl-fairgate" in done.stdout
    assert "_KUBECTL_FAIRGATE_COMPLETE" in done.stdout


def test_doctor_names_the_program_that_has_it() -> None:
    done = plugin("doctor", "--write", "values.yaml")
    assert done.returncode == 2
    assert "run `fairgate doctor`" in done.stderr
    assert "doctor  " not in plugin("--help").stdout


def test_unknown_command_error_lists_only_visible_commands() -> None:
    done = plugin("nodes")
    assert done.returncode == 2
    assert "No such command 'nodes'. Commands: queue, mine, why" in done.stderr
    assert "doctor" not in done.stderr
