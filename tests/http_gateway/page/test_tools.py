"""Calls of tools in the page: answered by hand, and run by MCP servers that the operator allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from http_gateway.mcp import McpServers
from sax.types import AnswerFormat, GenerateRequest, Message, TokenChunk
from tests.browser import READY, tab, until
from tests.http_gateway.page.test_browser import Saying, gateway
from tests.http_gateway.page.test_chats import answered
from tests.sax.adding_server import URL, AddingServer

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]

FORM = AnswerFormat("hermes")
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 40}}\n</tool_call>'
NASTY = "<img src=x onerror='window.hit=1'><script>window.hit=1</script>"


class Calling(Saying):
    """Calls `add` until a tool has answered, and then says what it gave."""

    def __init__(self, call: str = CALL) -> None:
        super().__init__("", FORM)
        self.call = call

    async def generate_to(
        self,
        request: GenerateRequest,
        sink: Callable[[TokenChunk], None],
        timeout_s: float | None = None,
    ) -> None:
        last = request.prompt[-1]
        assert isinstance(last, Message)
        self.text = f"It is {' '.join(last.texts)}." if last.role == "tool" else self.call
        await super().generate_to(request, sink, timeout_s)


@pytest.fixture
def server() -> AddingServer:
    return AddingServer()


@pytest.fixture
def cell() -> Calling:
    return Calling()


@pytest.fixture
def page(browser: Any, cell: Calling, server: AddingServer) -> Iterator[Any]:
    mcp = McpServers(urls=frozenset([URL]), transport=server.transport)
    with gateway(cell, mcp=mcp) as url, tab(browser, url) as opened:
        until(opened, READY)
        opened.locator("#settings").get_by_text("Tools", exact=True).click()
        opened.get_by_label(URL).wait_for()
        yield opened


def ask(page: Any, text: str) -> None:
    page.fill("#prompt", text)
    page.keyboard.press("Enter")
    answered(page)


def test_a_call_is_run_by_the_server_once_a_person_says_so(
    page: Any, cell: Calling, server: AddingServer
) -> None:
    page.get_by_label(URL).check()
    page.get_by_text("add", exact=False).first.wait_for()
    ask(page, "2 + 40?")
    card = page.locator(".call")
    assert '"b": 40' in card.locator("pre").inner_text()
    assert not server.calls()
    card.get_by_role("button", name="Run add at mcp.example.com").click()
    until(page, "document.querySelector('.call textarea').value === '42'")
    page.get_by_role("button", name="Send results").click()
    page.get_by_text("It is 42.").wait_for()
    assert [each["arguments"] for each in server.calls()] == [{"a": 2, "b": 40}]
    offered = {tool.name for tool in cell.requests[0].chat.tools}
    assert "add" in offered


def test_calls_run_by_themselves_if_that_is_ticked(page: Any, server: AddingServer) -> None:
    page.get_by_label(URL).check()
    page.check("#runs")
    page.fill("#prompt", "2 + 40?")
    page.keyboard.press("Enter")
    page.get_by_text("It is 42.").wait_for()
    assert len(server.calls()) == 1
    page.reload()
    until(page, READY)
    page.locator("#settings").get_by_text("Tools", exact=True).click()
    page.get_by_label(URL).wait_for()
    assert page.get_by_label(URL).is_checked()


def test_a_tool_of_ones_own_is_answered_by_hand(page: Any, server: AddingServer) -> None:
    tool = '[{"type": "function", "function": {"name": "add", "parameters": {}}}]'
    page.fill("#tools", tool)
    ask(page, "2 + 40?")
    assert page.get_by_role("button", name="Run add").count() == 0
    page.get_by_label("Result of add").fill(NASTY)
    page.get_by_role("button", name="Send results").click()
    page.locator(".message.result").wait_for()
    answered(page)
    assert NASTY in page.locator(".message.result pre").inner_text()
    assert page.locator(".transcript img, .transcript script").count() == 0
    assert page.evaluate("window.hit") is None
    assert not server.calls()


def test_names_and_results_of_a_hostile_server_stay_text(
    page: Any, cell: Calling, server: AddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        server,
        "_result",
        lambda method, params: {
            "result": {
                "tools/list": {"tools": [{"name": "add", "description": NASTY}, {"name": NASTY}]},
                "tools/call": {"content": [{"type": "text", "text": NASTY}]},
            }.get(method, {"protocolVersion": "2025-06-18"})
        },
    )
    page.get_by_label(URL).check()
    page.get_by_text("<script>").first.wait_for()
    assert page.locator("#settings img, #settings script").count() == 0
    page.fill("#prompt", "Go")
    page.keyboard.press("Enter")
    page.locator(".notices .trouble").wait_for()
    assert "<script>" in page.locator(".notices .trouble").inner_text()
    assert page.locator("#view-chat img, #view-chat script").count() == 0
    assert page.evaluate("window.hit") is None
