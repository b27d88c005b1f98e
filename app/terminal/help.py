"""Help of a command line as plain text, in the layout of kubectl: one line for each example.

`CommandLine` replaces `typer.Typer`. The functions below also make docs/cli.md. They use only
attributes that every supported version of typer has.
"""

from __future__ import annotations

import copy
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandInfo

from app.core.errors import InvalidInput

WIDEST_NAME = 30
"""Options with longer names have their description on the next lines."""

NUMBERS = ("WEIGHT",)
"""The metavars of arguments that are numbers."""

_UsageError: Any = typer.BadParameter.__base__
"""The error for a wrong command line. typer does not export it."""


@dataclass(frozen=True, slots=True)
class HelpSection:
    """A title, and pairs of a name and its description."""

    title: str
    rows: tuple[tuple[str, str], ...]


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Remove the words with which pydantic begins a message. typer reads some values by it."""
    try:
        yield
    except typer.BadParameter as error:
        error.message = error.message.replace("Value error, ", "", 1)
        raise


class HelpCommand(TyperCommand):
    """A command with plain help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line. Raises typer.BadParameter."""
        takes_number = any(_is_argument(each) and each.metavar in NUMBERS for each in self.params)
        with _plain_errors():
            try:
                return super().parse_args(ctx, [*args])
            except _UsageError as error:
                # A word such as -1 is a wrong number, not an option.
                name = getattr(error, "option_name", "")
                if not (takes_number and re.fullmatch(r"-[\d.]", name)):
                    raise
            ctx.ignore_unknown_options = True
            return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        formatter.write(help_text(self, ctx, formatter.width))


class HelpGroup(TyperGroup):
    """A group of commands with plain help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line. Raises typer.BadParameter, InvalidInput for misplaced options."""
        try:
            with _plain_errors():
                return super().parse_args(ctx, [*args])
        except _UsageError as error:
            line = self._reordered(ctx, args) if getattr(error, "option_name", "") else ""
            if not line:
                raise
            raise InvalidInput(f"Options follow the command: {line}") from error

    def _reordered(self, ctx: Any, args: list[str]) -> str:
        """Return the form of a command line with the options after the command.

        It is "" if the options are not those of the command. It has no values of options: some are
        secret.
        """
        for place in range(1, len(args)):
            command: Any = self
            path = [ctx.command_path]
            for word in args[place:]:
                found = command.get_command(ctx, word) if hasattr(command, "commands") else None
                if found is None:
                    break
                command, path = found, [*path, word]
            known: dict[str, Any] = {name: each for each in command.params for name in each.opts}
            last = known.get(args[place - 1])
            before = [word.partition("=")[0] for word in args[:place] if word.startswith("-")]
            is_value = last is not None and not last.is_flag
            if command is self or is_value or not known.keys() >= {*before}:
                continue
            path += [_argument(each) for each in command.params if _is_argument(each)]
            return " ".join([*path, *(_with_value(name, known[name]) for name in before)])
        return ""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        formatter.write(help_text(self, ctx, formatter.width))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first word names. The error for another lists them."""
        if args and self.get_command(ctx, args[0]) is None:
            known = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
            shown = [name for name, command in known.items() if command and not command.hidden]
            ctx.fail(f"No such command {args[0]!r}. Commands: {', '.join(shown)}.")
        return super().resolve_command(ctx, args)


class CommandLine(typer.Typer):
    """A typer program or group. Its commands have plain help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            cls=settings.pop("cls", HelpGroup),
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["-h", "--help"]},
            **settings,
        )

    def __call__(self, args: Sequence[str] | None = None, **settings: Any) -> Any:
        """Run the program.

        It builds only the command that the first word names, because all of them take long.
        """
        words = sys.argv[1:] if args is None else args
        program = copy.copy(self)
        if self.registered_callback is not None and words:
            commands = [each for each in self.registered_commands if _name(each) == words[0]]
            groups = [each for each in self.registered_groups if each.name == words[0]]
            if commands or groups:
                program.registered_commands, program.registered_groups = commands, groups
        return super(CommandLine, program).__call__(args, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Return the decorator that adds a command."""
        return super().command(name, cls=HelpCommand, **settings)


def _name(command: CommandInfo) -> str:
    return str(command.name or getattr(command.callback, "__name__", ""))


def examples(*lines: str) -> str:
    """Return the epilog of a command: command lines, each as a user types it."""
    return "\n".join(lines)


def help_text(command: Any, ctx: Any, width: int) -> str:
    """Return the whole help of a command."""
    blocks = ["\n".join(_wrapped(each, width)) for each in paragraphs(command)]
    blocks.append("\n".join(_wrapped(f"Usage: {usage(command, ctx)}", width, "  ")))
    for section in sections(command, ctx):
        blocks.append("\n".join([f"{section.title}:", *_columns(section.rows, width)]))
    shown = example_lines(command)
    if shown:
        blocks.append("\n".join(["Examples:", *(f"  {each}" for each in shown)]))
    return "\n\n".join(blocks) + "\n"


def paragraphs(command: Any) -> list[str]:
    """Return the description of a command, one string for each paragraph."""
    parts = (command.help or "").split("\n\n")
    return [" ".join(each.split()) for each in parts if each.strip()]


def usage(command: Any, ctx: Any) -> str:
    """Return the form of the command line."""
    words = [ctx.command_path, "[OPTIONS]"]
    words += [_argument(each) for each in command.get_params(ctx) if _is_argument(each)]
    if hasattr(command, "commands"):
        words.append("[COMMAND]" if command.invoke_without_command else "COMMAND")
    return " ".join(words)


def example_lines(command: Any) -> list[str]:
    """Return the examples of a command."""
    return (command.epilog or "").splitlines()


def subcommands(command: Any, ctx: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and command of a group's visible commands, in their order."""
    if hasattr(command, "list_commands"):
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            if found is not None and not found.hidden:
                yield name, found


def sections(command: Any, ctx: Any) -> list[HelpSection]:
    """Return commands, arguments and options with their descriptions."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, each in subcommands(command, ctx):
        found.setdefault("Commands", []).append((name, paragraphs(each)[0]))
    for param in command.get_params(ctx):
        if getattr(param, "hidden", False):
            continue
        panel = getattr(param, "rich_help_panel", None)  # old versions lack it for --help
        title = "Arguments" if _is_argument(param) else panel or "Options"
        name = _argument(param) if _is_argument(param) else _option(param)
        found.setdefault(title, []).append((name, _description(param)))
    return [HelpSection(title, tuple(rows)) for title, rows in found.items()]


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def _argument(param: Any) -> str:
    name = str(param.metavar or param.name.upper())
    return name if param.required or name.startswith("[") else f"[{name}]"


def _option(param: Any) -> str:
    short = [each for each in param.opts if not each.startswith("--")]
    long = [each for each in param.opts if each.startswith("--")]
    names = ", ".join([*short, *long, *param.secondary_opts])
    return _with_value(names, param)


def _with_value(names: str, param: Any) -> str:
    """Return names of an option, and what its value is."""
    if param.is_flag:
        return names
    long = [each for each in param.opts if each.startswith("--")]
    value = param.metavar or long[0].removeprefix("--").upper().replace("-", "_")
    return f"{names} {value}"


def _description(param: Any) -> str:
    words = [param.help or ""]
    if not _is_argument(param) and param.required:
        words.append("(required)")
    if getattr(param, "show_envvar", False) and param.envvar:
        words.append(f"(variable: {param.envvar})")
    default = param.default.value if isinstance(param.default, Enum) else param.default
    if param.show_default and isinstance(default, (str, int, float, Path)) and default != "":
        shown = param.secondary_opts[:1] if default is False else [str(default)]
        if not getattr(param, "is_flag", False):
            words.append(f"(default: {shown[0]})")
    return " ".join(filter(None, words))


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _columns(rows: tuple[tuple[str, str], ...], width: int) -> Iterator[str]:
    widest = max((len(name) for name, _ in rows if len(name) <= WIDEST_NAME), default=0)
    for name, text in rows:
        lines = _wrapped(text, max(width - widest - 4, 20)) or [""]
        if len(name) > widest:
            yield f"  {name}"
        else:
            yield f"  {name:{widest}}  {lines.pop(0)}".rstrip()
        yield from (f"{'':{widest + 4}}{line}" for line in lines)
