"""ProcessTransport: messages to an MCP server that this process starts, a line of JSON each."""

from __future__ import annotations

import asyncio
import shlex
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

import msgspec

from sax.mcp.session import Body, McpFailed, McpLimits, message_of

_STOPS_S = 2.0  # for a server whose input has ended


class ProcessTransport:
    """The server's standard error is ours. Ctrl-C does not reach it."""

    def __init__(self, process: Process, limits: McpLimits) -> None:
        self._process = process
        self._limits = limits

    @classmethod
    async def start(cls, command: str, limits: McpLimits) -> ProcessTransport:
        """Start a command, divided as a shell does. Raises McpFailed."""
        try:
            words = shlex.split(command)
            process = await asyncio.create_subprocess_exec(
                *words, stdin=PIPE, stdout=PIPE, limit=limits.bytes, start_new_session=True
            )
        except (OSError, ValueError, TypeError) as exc:
            raise McpFailed(f"it cannot be started: {exc}") from exc
        return cls(process, limits)

    def agree(self, protocol: str) -> None:
        """Every message is the same in all versions."""

    async def close(self) -> None:
        """End the server's input, after which it is to stop; one that does not is killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_STOPS_S):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def exchange(self, body: Body) -> Body:
        await self._write(body)
        while "id" in body:
            message = message_of(await self._line(body["method"]))
            if "method" in message:
                await self._answer(message)
            elif message.get("id") == body["id"]:
                return message
        return {}

    async def _line(self, method: str) -> bytes:
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
        except ValueError as exc:  # longer than the limit
            raise McpFailed(f"its answer has more than {self._limits.bytes} bytes") from exc
        if not line:
            raise McpFailed(f"it ended before it answered {method}")
        return line

    async def _answer(self, message: Body) -> None:
        """Answer what the server asks: it may ask whether this client is there."""
        if "id" not in message:
            return
        said: Body = {"jsonrpc": "2.0", "id": message["id"]}
        unknown = {"code": -32601, "message": "this client has tools only"}
        pinged = message["method"] == "ping"
        await self._write(said | ({"result": {}} if pinged else {"error": unknown}))

    async def _write(self, body: Body) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(body) + b"\n")
            await self._process.stdin.drain()
        except OSError as exc:
            raise McpFailed(f"it ended: {exc}") from exc
