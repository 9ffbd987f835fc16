"""The page in a browser before a cell that lies, and with keys of different rights."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from http_gateway.mcp import McpServers
from sax.auth.authentication import Authentication
from sax.auth.credentials import presented_token
from sax.auth.token_file import TokenFile
from sax.types import (
    AnswerFormat,
    GenerateRequest,
    Message,
    ReplicaStatus,
    Rights,
    ServableStatus,
    TokenChunk,
)
from tests.browser import tab, until
from tests.http_gateway.fake_cell import FakeCell, published
from tests.identities import Identities

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]

HOSTILE = (
    "<img src=x onerror='window.hit=1'> <script>window.hit=1</script>\n\n"
    "[link](javascript:window.hit=1) [fine](https://example.test/a)\n\n"
    "```html\n<script>window.hit=1</script>\n```\n\n| <b>a</b> | b |\n|---|---|\n| <i>1</i> | 2 |\n"
)


class Saying(FakeCell):
    """Answers every chat with one text, a character a chunk."""

    def __init__(self, text: str, form: AnswerFormat | None = None) -> None:
        super().__init__(published())
        self.text, self.form = text, form
        self.pause_s = 0.0  # after each chunk

    async def generate_to(
        self,
        request: GenerateRequest,
        sink: Callable[[TokenChunk], None],
        timeout_s: float | None = None,
    ) -> None:
        self.requests.append(request)
        for index, piece in enumerate(self.text):
            last = index == len(self.text) - 1
            sink(
                TokenChunk(
                    piece,
                    (index,),
                    finish_reason="stop" if last else None,
                    prompt_tokens=1,
                    completion_tokens=index + 1,
                    answer_format=None if index else self.form,
                )
            )
            if self.pause_s:
                await asyncio.sleep(self.pause_s)


class Granting(FakeCell):
    """Gives rights by the token that a call carries."""

    def __init__(self, people: Identities) -> None:
        super().__init__(published("/sax/test/smollm2"), published("/sax/test/llama"))
        self.names = {token: name for name, token in people.tokens.items()}

    async def rights(self) -> Rights:
        name = self.names[presented_token()]
        owned = frozenset({"/sax/test/llama"} if name == "owner" else ())
        return Rights(publish=name == "root", models=owned)


@contextmanager
def gateway(
    cell: FakeCell, asks: Authentication | None = None, mcp: McpServers | None = None
) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(cell, GatewayConfig(), asks or Authentication(), mcp=mcp)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        server.force_exit = True  # an open page polls
        thread.join()


def test_what_a_model_or_a_server_says_never_becomes_markup(browser: Any) -> None:
    cell = Saying(HOSTILE)
    model = published("/sax/test/bad", ready=0)
    bad = ReplicaStatus("", ServableStatus.FAILED, "<img src=x onerror='window.hit=1'>")
    cell.models["/sax/test/bad"] = type(model)(model.spec, (bad,))
    with gateway(cell) as url, tab(browser, url) as page:
        until(page, "document.querySelector('#model').value !== ''")
        page.fill("#prompt", "<b>hello</b>")
        page.keyboard.press("Enter")
        answer = page.locator(".message.answer")
        answer.locator("table").wait_for()
        page.wait_for_selector("#send:not([hidden])")
        assert page.locator("#transcript").locator("img, script, b, i, iframe").count() == 0
        (link,) = answer.locator("a").all()
        assert link.get_attribute("href") == "https://example.test/a"
        assert link.get_attribute("rel") == "noopener noreferrer"
        text = answer.inner_text()
        assert "<script>window.hit=1</script>" in text
        assert "[link](javascript:window.hit=1)" in text
        assert "<b>a</b>" in text
        assert page.locator(".message.user > .text").inner_text() == "<b>hello</b>"
        page.click("#tab-cell")
        assert "<img src=x" in page.locator("#models").inner_text()
        assert page.evaluate("window.hit") is None


def test_reasoning_is_folded_above_the_answer(browser: Any) -> None:
    cell = Saying("two and two\n</think>\n\nIt is **four**.", AnswerFormat("none", "think", True))
    with gateway(cell) as url, tab(browser, url) as page:
        until(page, "document.querySelector('#model').value !== ''")
        page.fill("#prompt", "2 + 2?")
        page.keyboard.press("Enter")
        page.locator(".message.answer strong").wait_for()
        thoughts = page.locator(".thoughts")
        assert not thoughts.locator(".text").is_visible()
        thoughts.locator("summary").click()
        assert thoughts.locator(".text").inner_text().strip() == "two and two"
        assert page.locator(".message.answer > .text").inner_text().strip() == "It is four."
        page.fill("#prompt", "And 3 + 3?")
        page.keyboard.press("Enter")
        page.locator(".message.answer").nth(1).locator("strong").wait_for()
    said = cell.requests[1].prompt[1]
    assert isinstance(said, Message)
    assert "two and two" not in said.content


def test_a_key_is_asked_for_kept_by_the_tab_and_decides_what_is_shown(
    browser: Any, tmp_path: Any
) -> None:
    people = Identities(tmp_path, "root", "owner", "user")
    asks = Authentication(TokenFile(people.path))
    with gateway(Granting(people), asks) as url, tab(browser, url) as page:
        dialog = page.locator("#key-dialog")
        dialog.wait_for()
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        page.locator("#key-trouble:not([hidden])").wait_for()
        for name, publishes, unpublishes in (("user", 0, 0), ("owner", 0, 1), ("root", 1, 2)):
            if not dialog.is_visible():
                page.click("#key-open")
            page.fill("#key", people.tokens[name])
            dialog.get_by_role("button", name="Use it").click()
            page.get_by_text("live", exact=True).wait_for()
            page.click("#tab-cell")
            until(
                page,
                f"document.querySelectorAll('#models .danger').length === {unpublishes} && "
                f"document.querySelectorAll('#publish-open:not([hidden])').length === {publishes}",
            )
        page.reload()
        page.get_by_text("live", exact=True).wait_for()
        assert not dialog.is_visible()
        kept = page.evaluate("JSON.stringify(localStorage)")
        assert not any(token in kept for token in people.tokens.values())
        page.click("#key-open")
        dialog.get_by_role("button", name="Forget it").click()
        dialog.wait_for()
        assert page.evaluate("sessionStorage.getItem('sax-key')") is None


def test_a_gateway_that_goes_away_is_told_and_found_again(browser: Any) -> None:
    cell = FakeCell(published())
    with gateway(cell) as url, tab(browser, url) as page:
        page.get_by_text("live", exact=True).wait_for()
        page.route("**/cell", lambda route: route.abort())
        page.get_by_text("the gateway does not answer").wait_for()
        page.unroute("**/cell")
        page.get_by_text("live", exact=True).wait_for()


def test_code_is_coloured_and_formulas_are_set_within_the_policy(browser: Any) -> None:
    """Any breach of the page's policy is an error of the console, which fails the test."""
    written = (
        "$x^2$ and \\[\\colorbox{red}{$\\frac{a}{b}$} \\boxed{c} \\underbrace{d}_{e}\\] and "
        "$\\undefined$, $\\href{javascript:window.hit=1}{x}$, $\\htmlStyle{color:red}{x}$\n\n"
        "- [x] ~~done~~ https://example.test/x\n\n```python\ndef f(): return '<b>'\n```\n"
    )
    with gateway(Saying(written)) as url, tab(browser, url) as page:
        until(page, "document.querySelector('#model').value !== ''")
        page.fill("#prompt", "Write")
        page.keyboard.press("Enter")
        answer = page.locator(".message.answer")
        answer.locator(".hljs-keyword").first.wait_for()
        answer.locator(".formula .katex").nth(1).wait_for()
        assert answer.locator(".formula.wrong").first.inner_text() == "\\undefined"
        assert answer.locator("a[href^='javascript'], [style*='color:red']").count() == 0
        assert answer.locator(".task input:checked").count() == 1
        assert answer.locator("pre").inner_text().strip() == "def f(): return '<b>'"
        assert page.evaluate("document.fonts.check('16px KaTeX_Main')")
        assert page.evaluate("window.hit") is None


def test_the_cell_is_filtered_by_words_of_any_kind(browser: Any) -> None:
    cell = FakeCell(
        published("/sax/test/one"),
        published("/sax/test/two", ready=0, reason="out of memory"),
    )
    with gateway(cell) as url, tab(browser, url) as page:
        page.click("#tab-cell")
        rows = page.locator("#models tr")
        rows.nth(1).wait_for()
        page.fill("#cell-filter", "LOADING memory")
        until(page, "document.querySelectorAll('#models tr').length === 1")
        assert "/sax/test/two" in rows.inner_text()
        page.fill("#cell-filter", "nowhere")
        page.get_by_text("Nothing has these words.").first.wait_for()


def test_an_answer_that_grows_is_what_it_is_once_it_is_whole(browser: Any) -> None:
    """Each block is changed in place while it grows; what is shown does not depend on that."""
    written = (
        "para *one* `x` $y$\nline\n\n```\n```\n\n```python\ndef f():\n    return 1\n```\n\n"
        "- a **b**\n  - c\n- [x] d\n\n1. e\n2. f\n\n> q\n> r\n\n"
        "| a | b |\n|---|:-:|\n| 1 | 2 |\n| 3 |\n"
        "\n# h\n\n- g\n  ```\n  code\n  ```\n"
    )
    cell = Saying(written)
    cell.pause_s = 0.004
    with gateway(cell) as url, tab(browser, url) as page:
        until(page, "document.querySelector('#model').value !== ''")
        page.fill("#prompt", "Write")
        page.keyboard.press("Enter")
        page.wait_for_selector("#stop:not([hidden])")
        page.wait_for_selector("#send:not([hidden])")
        page.locator(".message.answer .hljs-keyword").first.wait_for()
        page.wait_for_timeout(300)
        grown = page.locator(".message.answer > .text").evaluate("node => node.innerHTML")
        page.reload()
        page.locator(".open-chat").click()
        page.locator(".message.answer .hljs-keyword").first.wait_for()
        page.wait_for_timeout(300)
        whole = page.locator(".message.answer > .text").evaluate("node => node.innerHTML")
    assert grown == whole
