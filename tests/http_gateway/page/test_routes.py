"""The page: at / for browsers, as files that hold no data and let nothing in from elsewhere."""

from __future__ import annotations

import re

import httpx
import pytest

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from sax.look.page_file import page_files
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell, published

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FILES = page_files("http_gateway.page")


@pytest.fixture
def browser() -> httpx.AsyncClient:
    app = create_app(FakeCell(published()), GatewayConfig())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


@pytest.mark.parametrize("generation", [1, 2])
async def test_a_browser_gets_the_page_and_a_program_the_greeting(generation: int) -> None:
    app = create_app(FakeCell(), GatewayConfig(saxml_generation=generation))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        page = await http.get("/", headers=BROWSER)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["vary"] == "accept"
        for accept in ("*/*", "application/json"):
            told = await http.get("/", headers={"accept": accept})
            assert told.json() == {"message": "HTTP Server for SAX Client"}
            assert told.headers["vary"] == "accept"


async def test_the_page_takes_no_script_or_style_from_elsewhere_or_within(
    browser: httpx.AsyncClient,
) -> None:
    page = await browser.get("/", headers=BROWSER)
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "'unsafe" not in policy
    assert "trusted-types 'none'" in policy
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script>|javascript:|https?://", page.text)


async def test_everything_that_the_page_and_its_modules_name_is_there(
    browser: httpx.AsyncClient,
) -> None:
    page = await browser.get("/", headers=BROWSER)
    named = {*re.findall(r'(?:src|href)="page/([\w.]+)"', page.text)}
    for name in FILES:
        if name.endswith(".js"):
            text = FILES[name].body.decode()
            named |= {*re.findall(r'^import .* from "\./([\w.]+)"', text, re.MULTILINE)}
    assert {"app.js", "chat_view.js", "look.css", "theme.js", "icon.svg"} <= named
    for name in sorted(named):
        reply = await browser.get(f"/page/{name}")
        assert reply.status_code == 200, name
        assert reply.headers["x-content-type-options"] == "nosniff"
    # Each is used; the page loads nothing in vain.
    assert {*FILES} - named == {"index.html"}


async def test_a_file_that_is_known_is_not_sent_again(browser: httpx.AsyncClient) -> None:
    for path, headers in (("/page/app.js", {}), ("/", BROWSER)):
        first = await browser.get(path, headers=headers)
        tag = first.headers["etag"]
        for known in (tag, f'"other", W/{tag}'):
            again = await browser.get(path, headers={**headers, "if-none-match": known})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == tag
        changed = await browser.get(path, headers={**headers, "if-none-match": '"other"'})
        assert changed.content == first.content


@each_case("name", ["index.html", "routes.py", "__init__.py", "%2e%2e%2froutes.py", "none.js"])
async def test_nothing_else_is_sent(name: str, browser: httpx.AsyncClient) -> None:
    assert (await browser.get(f"/page/{name}")).status_code == 404


def test_no_module_can_make_markup_of_a_text() -> None:
    """The policy of the page would refuse most of these; none should be tried."""
    ways = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "srcdoc")
    for name, file in FILES.items():
        text = file.body.decode()
        assert not [way for way in ways if way in text], name


def test_modules_are_small_and_the_key_is_kept_by_the_tab_only() -> None:
    for name, file in FILES.items():
        text = file.body.decode()
        assert not name.endswith(".js") or text.count("\n") <= 250, name
        assert "localStorage" not in text or name == "theme.js"
