"""The page: at / for browsers, as files that hold no data and let nothing in from elsewhere."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from http_gateway.page.routes import WatchedCell, prefers_html
from sax.activity import Activity
from sax.auth.authentication import Authentication
from sax.auth.credentials import presented_token
from sax.auth.key_limits import KeyLimits
from sax.auth.token_file import TokenFile, token_line
from sax.errors import AdminUnavailable, Unauthenticated
from sax.look.page_file import page_files
from sax.types import (
    JoinedServer,
    Overview,
    Progress,
    Rights,
    ServableInfo,
    ServableStatus,
    ServerInfo,
    Traffic,
)
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
        assert page.headers["vary"] == "accept, accept-encoding"
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
            named |= {*re.findall(r'(?:[ (]import\("\./|href: "page/)([\w.]+)"', text)}
    named |= {*re.findall(r"url\(([\w.-]+)\)", FILES["formulas.css"].body.decode())}
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


MODULES = {
    name: file.body.decode()
    for name, file in FILES.items()
    if name.endswith((".js", ".html")) and not name.endswith("_library.js")
}


def test_no_module_can_make_markup_of_a_text() -> None:
    """The policy of the page would refuse most of these; none should be tried."""
    ways = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "srcdoc")
    for name, text in MODULES.items():
        assert not [way for way in ways if way in text], name


# What the browser keeps beside chats: colours, settings, and the models that were compared.
STORAGES = ("theme.js", "text_storage.js")
KEEPING = ("text_storage.js", "settings_form.js", "compare_view.js")


def test_modules_are_small_and_the_key_is_kept_by_the_tab_only() -> None:
    for name, text in MODULES.items():
        assert not name.endswith(".js") or text.count("\n") <= 250, name
        assert "localStorage" not in text or name in STORAGES
        assert "ofBrowser" not in text or name in KEEPING


async def test_the_files_of_the_first_view_are_small_and_compressed(
    browser: httpx.AsyncClient,
) -> None:
    """Libraries for code and formulas, and fonts, are fetched with the first of each."""
    late = ("highlight_library.js", "formula_library.js", "formulas.css", "LICENSES.txt")
    first = [name for name in FILES if name not in late and not name.endswith(".woff2")]
    sizes = {}
    for name in first:
        path, accept = ("/", BROWSER) if name == "index.html" else (f"/page/{name}", {})
        async with browser.stream(
            "GET", path, headers={**accept, "accept-encoding": "gzip"}
        ) as got:
            sizes[name] = len(b"".join([part async for part in got.aiter_raw()]))
            assert got.headers["content-encoding"] == "gzip", name
    assert sum(sizes.values()) <= 150_000, sizes
    plain = await browser.get("/page/app.js", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == FILES["app.js"].body


CHROME = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


@each_case(
    "accept, html",
    [
        (CHROME, True),
        ("text/html", True),
        ("TEXT/HTML; q=0.5", True),
        ("text/html;level=1;q=0.5, application/json;q=0.4", True),
        ("text/html;q=0.5, application/json", False),
        ("text/html;q=0", False),
        ("text/html;q=much", False),
        ("*/*", False),
        ("text/*", False),
        ("application/json", False),
        ("application/json, text/plain, */*", False),
        ("", False),
    ],
)
def test_html_is_for_those_who_name_it(accept: str, html: bool) -> None:
    assert prefers_html(accept) is html


SMOLLM2, LLAMA = "/sax/test/smollm2", "/sax/test/llama"
ACTIVITY = Activity(slots=8, slots_used=2, pages=100, pages_used=25, generated_tokens=7)


def server(*models: str) -> JoinedServer:
    held = tuple(
        ServableInfo(
            model_id=model,
            status=ServableStatus.LOADED,
            queued=3,
            running=2,
            activity=ACTIVITY,
        )
        for model in models
    )
    info = ServerInfo(address="127.0.0.1:7", memory_total=100, tags=("a",))
    return JoinedServer(info, 0.0, held, 60, traffic=Traffic(4, 0.0, 1.5, 0.25))


async def test_models_replicas_and_servers_are_told_with_their_figures(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.servers = (server(SMOLLM2),)
    told = (await http.get("/cell")).json()
    assert (told["cell"], told["admin"], told["may_publish"]) == ("/sax/test", "ok", True)
    assert [one["model"] for one in told["models"]] == [SMOLLM2, LLAMA]
    (replica,) = told["models"][0]["replicas"]
    assert (replica["address"], replica["status"]) == ("127.0.0.1:1", "loaded")
    (one,) = told["servers"]
    assert (one["memory_used"], one["successes_per_second"], one["mean_latency_s"]) == (
        60,
        1.5,
        0.25,
    )
    (held,) = one["servables"]
    assert (held["queued"], held["running"]) == (3, 2)
    assert held["activity"]["pages_used"] / held["activity"]["pages"] == 0.25
    assert held["activity"]["generated_tokens"] == 7


async def test_a_replica_that_loads_tells_its_phase(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    model = published(SMOLLM2, ready=0, reason="compiling")
    loading = replace(model.replicas[0], progress=Progress("compiling bucket", 3, 8))
    cell.models = {SMOLLM2: replace(model, replicas=(loading,))}
    (told,) = (await http.get("/cell")).json()["models"]
    assert told["replicas"][0]["progress"] == {
        "phase": "compiling bucket",
        "done": 3,
        "total": 8,
        "unit": "",
    }


async def test_viewers_share_one_look_a_second(cell: FakeCell, http: httpx.AsyncClient) -> None:
    replies = [(await http.get("/cell")).json()["seen_at_s"] for _ in range(3)]
    assert cell.lists <= len({*replies})


@pytest.mark.extended
async def test_the_last_look_stands_while_the_admin_is_away(cell: FakeCell) -> None:
    http = gateway(cell)
    assert (await http.get("/cell")).json()["admin"] == "ok"
    cell.admin_failure = AdminUnavailable("the admin is away")
    cell.granted = None
    seen = await _until_stale(http)
    assert seen["admin"] == "the admin is away"
    assert [one["model"] for one in seen["models"]] == [SMOLLM2, LLAMA]
    assert seen["may_publish"] is None


async def _until_stale(http: httpx.AsyncClient) -> dict[str, Any]:
    for _ in range(1200):
        told = (await http.get("/cell")).json()
        if told["admin"] != "ok":
            return told
        await asyncio.sleep(0.05)
    raise AssertionError("the last look never grew old")


async def test_an_admin_that_never_answered_is_an_error(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.admin_failure = AdminUnavailable("the admin is away")
    reply = await http.get("/cell")
    assert (reply.status_code, reply.json()) == (503, {"detail": "the admin is away"})


@each_case(
    "granted, publish, change",
    [
        (Rights(publish=True), True, [True, True]),
        (Rights(models=frozenset({LLAMA})), False, [False, True]),
        (Rights(), False, [False, False]),
        (None, None, [None, None]),
    ],
)
async def test_a_caller_is_told_what_it_may_change(
    granted: Rights | None,
    publish: bool | None,
    change: list[bool | None],
    cell: FakeCell,
    http: httpx.AsyncClient,
) -> None:
    cell.granted = granted
    told = (await http.get("/cell")).json()
    assert told["may_publish"] is publish
    assert [one["may_change"] for one in told["models"]] == change


async def test_a_key_that_the_admin_refuses_is_refused(cell: FakeCell) -> None:
    class Asking(FakeCell):
        async def rights(self) -> Rights:
            raise Unauthenticated("this admin server wants a token")

    reply = await gateway(Asking(published())).get("/cell")
    assert reply.status_code == 401


class Listening(FakeCell):
    """Remembers whose token each call would carry."""

    def __init__(self) -> None:
        super().__init__(published(SMOLLM2), published(LLAMA))
        self.servers = (server(SMOLLM2, LLAMA),)
        self.asked: dict[str, str] = {}

    async def overview(self) -> Overview:
        self.asked["overview"] = presented_token()
        return await super().overview()

    async def rights(self) -> Rights:
        self.asked["rights"] = presented_token()
        return await super().rights()


async def test_a_key_sees_its_models_only_and_asks_for_its_rights_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAX_TOKEN", "the-gateways-own")
    tokens = tmp_path / "tokens"
    tokens.write_text(token_line("ann", "secret", KeyLimits(models=("smollm2",))) + "\n")
    cell = Listening()
    http = gateway(cell, Authentication(TokenFile(tokens)))
    reply = await http.get("/cell", headers={"authorization": "Bearer secret"})
    told = reply.json()
    assert [one["model"] for one in told["models"]] == [SMOLLM2]
    assert [one["model"] for one in told["servers"][0]["servables"]] == [SMOLLM2]
    assert LLAMA not in reply.text
    assert cell.asked == {"overview": "the-gateways-own", "rights": "secret"}


def gateway(cell: FakeCell, asks: Authentication | None = None) -> httpx.AsyncClient:
    app = create_app(cell, GatewayConfig(), asks or Authentication())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def test_it_asks_again_once_what_it_has_is_a_second_old() -> None:
    cell, clock = FakeCell(published()), Clock()
    watched = WatchedCell(cell, clock)
    for clock.now_s, asked in ((100.0, 1), (100.9, 1), (101.0, 2), (101.5, 2), (50.0, 3)):
        await watched.look()
        assert cell.lists == asked


async def test_many_viewers_at_once_ask_once() -> None:
    cell = FakeCell(published())
    watched = WatchedCell(cell, Clock())
    sights = await asyncio.gather(*(watched.look() for _ in range(9)))
    assert cell.lists == 1
    assert len({id(sight) for sight in sights}) == 1


async def test_a_viewer_that_leaves_takes_nothing_from_the_others() -> None:
    class Held(FakeCell):
        async def overview(self) -> Overview:
            await self.released.wait()
            return await super().overview()

    cell = Held(published())
    watched = WatchedCell(cell, Clock())
    first, second = (asyncio.create_task(watched.look()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    cell.released.set()
    assert (await second).failure == ""


async def test_a_failure_is_told_beside_the_last_sight_and_forgotten_with_the_next() -> None:
    cell, clock = FakeCell(published()), Clock()
    watched = WatchedCell(cell, clock)
    whole = await watched.look()
    cell.admin_failure, clock.now_s = AdminUnavailable("away"), 102.0
    stale = await watched.look()
    assert (stale.failure, stale.at_s, stale.overview) == ("away", 100.0, whole.overview)
    cell.admin_failure = None
    assert await watched.look() == type(whole)(whole.overview, 102.0)


async def test_without_any_sight_the_failure_is_raised() -> None:
    cell = FakeCell()
    cell.admin_failure = AdminUnavailable("away")
    with pytest.raises(AdminUnavailable, match="away"):
        await WatchedCell(cell, Clock()).look()
