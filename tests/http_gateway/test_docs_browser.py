"""/docs in a browser: requests are sent and answered there, and no view breaks a rule of axe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sax.auth.authentication import Authentication
from sax.auth.token_file import TokenFile, new_token, token_line
from tests.browser import broken_rules, chromium, tab, until
from tests.each_case import each_case
from tests.http_gateway.page.test_browser import Saying, gateway

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]

CHAT = "details#post--v1-chat-completions"
LISTED = "document.querySelector('#model').options.length > 0"


@contextmanager
def docs(browser: Any, url: str, part: str = "", **look: Any) -> Iterator[Any]:
    with tab(browser, url, **look) as page:
        page.goto(f"{url}/docs{part}")
        until(page, LISTED)
        yield page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


def test_a_chat_is_sent_with_the_model_and_its_stream_is_shown(browser: Any) -> None:
    with gateway(Saying("It is <b>Paris</b>.")) as url, docs(browser, url) as page:
        page.click(f"{CHAT} > summary")
        assert '"model": "/sax/' in page.input_value(f"{CHAT} textarea")
        page.click(f"{CHAT} button[type=submit]")
        status = page.locator(f"{CHAT} .try [role=status]")
        status.filter(has_text="200 OK, text/event-stream").filter(
            has_text="whole after"
        ).wait_for()
        answer = page.inner_text(f"{CHAT} pre")
        assert "data: [DONE]" in answer
        assert "<" in answer
        assert page.locator(f"{CHAT} pre b").count() == 0  # a model's words are no markup


def test_a_wrong_body_shows_the_error_and_a_stream_is_stopped(browser: Any) -> None:
    cell = Saying("on and on " * 500)
    cell.pause_s = 0.05
    with gateway(cell) as url, docs(browser, url, f"#{CHAT[8:]}") as page:
        page.click(f"{CHAT} button[type=submit]")
        page.locator(f"{CHAT} pre").filter(has_text="data:").wait_for()
        page.click(f"{CHAT} [data-stop]")
        page.locator(f"{CHAT} .try [role=status]").filter(has_text="Stopped.").wait_for()
        page.fill(f"{CHAT} textarea", '{"nonsense": 1}')
        page.click(f"{CHAT} button[type=submit]")
        page.locator(f"{CHAT} pre").filter(has_text="invalid_request_error").wait_for()


def test_words_find_routes_and_fields(browser: Any) -> None:
    with gateway(Saying("x")) as url, docs(browser, url) as page:
        page.fill("#search", "rerank documents")
        page.locator("#found").filter(has_text="routes and types found").wait_for()
        assert page.locator("details:visible").count() < 8
        assert page.locator("#post--v1-rerank").is_visible()
        page.fill("#search", "")
        assert page.locator("#get--healthz").is_visible()


def test_a_key_is_sent_and_kept_in_this_tab(browser: Any, tmp_path: Path) -> None:
    secret = new_token()
    (tmp_path / "tokens").write_text(token_line("alice", secret) + "\n")
    asks = Authentication(TokenFile(tmp_path / "tokens"))
    with gateway(Saying("x"), asks) as url, tab(browser, url) as page:
        page.goto(f"{url}/docs")
        page.fill("#key", secret)
        page.press("#key", "Tab")
        until(page, LISTED)
        page.reload()
        until(page, LISTED)
        assert page.input_value("#key") == secret


@each_case("scheme, width", [("light", 1300), ("dark", 1300), ("light", 375), ("dark", 375)])
def test_no_rule_of_axe_is_broken(browser: Any, scheme: str, width: int) -> None:
    look = {"color_scheme": scheme, "viewport": {"width": width, "height": 760}}
    with gateway(Saying("It is Paris.")) as url, docs(browser, url, **look) as page:
        for route in ("post--v1-chat-completions", "get--v1-models-name", "post--v1-files"):
            page.click(f"#{route} > summary")
        page.click("#OpenAiError > summary")
        page.click(f"{CHAT} button[type=submit]")
        page.locator(f"{CHAT} pre").filter(has_text="DONE").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert broken_rules(page) == []
