"""Server and tool of `fairgate mcp`. They refuse requests that the MCP SDK ignores or changes.

The SDK drops lines that it cannot parse, so a client waits for their answers until its time-out. It
ignores unknown arguments of tools, and takes the text `null` for an argument without a value.
"""

from __future__ import annotations

import json
from typing import Any

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError
from pydantic import ValidationError

from app.core.safe_text import quote_text

NO_MESSAGE = "This line is no JSON-RPC 2.0 message; write one request or notification a line."


class StrictTool(Tool):
    """A tool that refuses unknown arguments and the text `null`."""

    def model_post_init(self, context: Any, /) -> None:
        """Describe in the schema that there are no other arguments."""
        self.parameters["additionalProperties"] = False

    async def run(
        self, arguments: dict[str, Any], context: Any, convert_result: bool = False
    ) -> Any:
        """Run the tool. Raises ToolError."""
        known = self.parameters["properties"]
        for name, value in arguments.items():
            if name not in known:
                raise ToolError(
                    f"{self.name} has no argument {quote_text(name)}; it has {', '.join(known)}."
                )
            if isinstance(value, str) and value.strip() == "null":
                raise ToolError(f"{name} is the text null; leave it out if you mean no value.")
        return await super().run(arguments, context, convert_result)


class AnsweringServer(MCPServer[Any]):
    """A server that answers also the lines that it cannot parse."""

    async def run_stdio_async(self) -> None:
        """Serve on standard input and output until the input ends."""
        server = self._lowlevel_server
        async with stdio_server() as (lines, answers), anyio.create_task_group() as tasks:
            sender, messages = anyio.create_memory_object_stream[Any]()
            tasks.start_soon(_pass_messages, lines, sender, answers)
            await server.run(messages, answers, server.create_initialization_options())
            tasks.cancel_scope.cancel()


async def _pass_messages(lines: Any, sender: Any, answers: Any) -> None:
    """Pass messages to the server, and answer the other lines."""
    async with lines, sender:
        async for item in lines:
            if not isinstance(item, Exception):
                await sender.send(item)
            elif (answer := _refusal(item)) is not None:
                await answers.send(SessionMessage(answer))


def _refusal(error: Exception) -> JSONRPCError | None:
    """Return the answer to a line that the SDK could not parse; None for an empty line."""
    found: list[Any] = error.errors() if isinstance(error, ValidationError) else []
    if found and found[0]["type"] == "json_invalid":
        line = str(found[0]["input"])
        if not line.strip():
            return None
        code, why, body = PARSE_ERROR, found[0]["msg"], _decoded(line)
    else:
        code, why, body = INVALID_REQUEST, NO_MESSAGE, None
        for each in found:  # the input of an error is the object if a field is missing
            if each["type"] == "missing" and len(each["loc"]) == 2:
                body = each["input"]
    return JSONRPCError(
        jsonrpc="2.0", id=_request_id(body), error=ErrorData(code=code, message=why)
    )


def _decoded(line: str) -> Any:
    """Return a line as Python parses it, which accepts half surrogates; None if it fails too."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _request_id(body: Any) -> int | str | None:
    """Return the id of a request; None for other messages, and for an id of another type."""
    if not isinstance(body, dict) or "result" in body or "error" in body:
        return None  # a client would take the answer for that of its own request
    found = body.get("id")
    if isinstance(found, str):
        return found if found == found.encode(errors="replace").decode() else None
    return found if type(found) is int else None
