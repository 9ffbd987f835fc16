"""McpTools: tools of MCP servers in a terminal conversation, called from here."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType

import httpx
import msgspec

from sax.chat import Message, Tool, ToolCall
from sax.command import printable, say
from sax.errors import InvalidRequest
from sax.format import shortened
from sax.mcp import Body, HttpTransport, McpFailed, McpLimits, McpOutcome, McpSession, message_of

_LIMITS = McpLimits(seconds=60)
_REFUSED = McpOutcome("The user did not approve this call.")
_STOPS_S = 2.0  # for a server whose input has ended


class McpTools:
    """Sessions with servers while the block is entered. `tools` are theirs."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        yes: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """servers: URLs and commands. yes: calls are made without asking. transport: to URLs; None:
        the network."""
        self._servers = servers
        self._transport = transport
        self._yes = yes
        self._free: set[str] = set()  # tools that are called without asking
        self._places: dict[str, tuple[McpSession, str]] = {}
        self._runner = asyncio.Runner()
        self._opened = AsyncExitStack()
        self.tools: tuple[Tool, ...] = ()

    def __enter__(self) -> McpTools:
        """Raises InvalidRequest for a server that cannot be used."""
        try:
            self._runner.run(self._open())
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._runner.run(self._opened.aclose())
        self._runner.close()

    def results(self, calls: Sequence[ToolCall]) -> list[Message]:
        """Make calls, each if the person agrees, and return what they gave as messages."""
        return [Message("tool", self._result(call), call.name, call.id) for call in calls]

    def _result(self, call: ToolCall) -> str:
        say(f"{call.name} {call.arguments}")
        outcome = self._called(call) if self._agreed(call.name) else _REFUSED
        say(shortened(outcome.told))
        return outcome.told

    def _called(self, call: ToolCall) -> McpOutcome:
        if call.name not in self._places:
            return McpOutcome(f"{call.name} is no tool of these servers", failed=True)
        session, name = self._places[call.name]
        try:
            given = msgspec.json.decode(call.arguments or "{}", type=dict[str, object])
            return self._runner.run(session.call(name, given))
        except (McpFailed, msgspec.MsgspecError) as exc:
            return McpOutcome(str(exc), failed=True)

    def _agreed(self, name: str) -> bool:
        if self._yes or name in self._free:
            return True
        if not sys.stdin.isatty():
            say("not called: nobody is there to ask; --mcp-yes calls without asking")
            return False
        sys.stderr.write("Call it? yes, no, always (this tool): ")
        sys.stderr.flush()
        said = input().strip().lower()
        if said in ("a", "always"):
            self._free.add(name)
        return said in ("y", "yes", "a", "always")

    async def _open(self) -> None:
        for number, server in enumerate(self._servers, 1):
            try:
                session = await self._session(server)
                listed = await session.tools()
            except McpFailed as exc:
                raise InvalidRequest(f"--mcp {server}: {exc}") from exc
            self._add(session, listed, f"server{number}")
            names = ", ".join(str(each.get("name")) for each in listed)
            say(f"{printable(server)}: {names or 'no tools'}")

    async def _session(self, server: str) -> McpSession:
        if server.startswith(("http://", "https://")):
            http = await self._opened.enter_async_context(
                httpx.AsyncClient(timeout=_LIMITS.seconds, transport=self._transport)
            )
            session = McpSession(HttpTransport(http, server, {}, _LIMITS), _LIMITS)
        else:
            session = McpSession(await ProcessTransport.start(server, _LIMITS), _LIMITS)
        self._opened.push_async_callback(session.close)
        await session.open()
        return session

    def _add(self, session: McpSession, listed: list[dict[str, object]], label: str) -> None:
        """label: begins the names of tools whose own names are taken."""
        made: list[Tool] = []
        for entry in listed:
            name = str(entry.get("name"))
            full = f"{label}__{name}" if name in self._places else name
            schema = entry.get("inputSchema") or {"type": "object"}
            about = str(entry.get("description") or "")
            made.append(Tool(full, about, json.dumps(schema, ensure_ascii=False)))
            self._places[full] = session, name
        self.tools += tuple(made)


class ProcessTransport:
    """Messages to an MCP server that this process starts, a line of JSON each.

    The server's standard error is ours. Ctrl-C does not reach it.
    """

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
