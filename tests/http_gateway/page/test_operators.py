"""The operators' parts of the cell view: requests, keys, versions, changes, log; in a browser."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from sax.adapters import ADAPTER_PATH, BASE
from sax.auth.authentication import Authentication
from sax.auth.token_file import TokenFile
from sax.flags.last_lines import LastLines, LogLine
from sax.types import JoinedServer, ModelSpec, PublishedModel, ServerInfo, Version
from tests.browser import READY, tab, until
from tests.http_gateway.page.test_browser import Granting, Saying, gateway
from tests.identities import Identities

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]
NASTY = "<img src=x onerror='window.hit=1'>"
MODEL = "/sax/test/smollm2"


@pytest.fixture
def cell() -> Saying:
    return Saying("word " * 4000)


@pytest.fixture
def page(browser: Any, cell: Saying) -> Iterator[Any]:
    with gateway(cell) as url, tab(browser, url) as opened:
        until(opened, READY)
        yield opened


def opened(page: Any, name: str) -> Any:
    part = page.locator(f"#{name}-part")
    part.locator("summary").click()
    return part


def test_a_running_request_is_seen_with_its_phase_and_cancelled(page: Any, cell: Saying) -> None:
    cell.pause_s = 0.01
    page.fill("#prompt", "Long")
    page.keyboard.press("Enter")
    page.locator(".message.answer .text p").wait_for()
    page.click("#tab-cell")
    row = page.locator("#requests tr")
    row.get_by_text("answering").wait_for()
    cell.served = "prefill"
    row.get_by_text("prefill").wait_for()
    assert MODEL in row.inner_text()
    row.get_by_role("button", name="Cancel request").click()
    page.get_by_text("No request runs.").wait_for()
    page.click("#tab-chat")
    trouble = page.locator(".message.answer .trouble")
    trouble.get_by_text("an operator of this gateway ended the request").wait_for()


def test_keys_changes_and_the_log_are_asked_for_once_they_are_open(page: Any, cell: Saying) -> None:
    cell.text = "Four."
    page.fill("#prompt", "2 + 2?")
    page.keyboard.press("Enter")
    page.locator(".message.answer[aria-busy='false']").wait_for()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    page.click("#tab-cell")
    page.get_by_text("No request runs.").wait_for()
    assert not {"keys", "log", "events?limit=50"} & set(asked)
    cells = opened(page, "keys").locator("tbody tr td")
    assert cells.nth(1).inner_text() == "2", "the chat, and before it the count of its tokens"
    opened(page, "changes").get_by_text("update").first.wait_for()
    logger, handler = logging.getLogger("tests.page"), LastLines()
    logger.addHandler(handler)
    logger.warning("%s is slow", NASTY)
    logger.removeHandler(handler)
    log = opened(page, "log").locator("#log")
    log.get_by_text("is slow").wait_for()
    line = LogLine(at_s=5.0, level="error", logger="model_server", text=f"{NASTY} failed")
    cell.logs = {"": [{**line, "text": "leads"}], "10.0.0.1:10001": [line]}
    cell.servers = (JoinedServer(ServerInfo(address="10.0.0.1:10001"), 5.0),)
    page.select_option("#log-server", "admin")
    log.get_by_text("leads").wait_for()
    page.select_option("#log-server", "10.0.0.1:10001")
    log.get_by_text("failed").wait_for()
    assert log.get_by_text("leads").count() == 0
    cell.servers = ()
    until(page, "document.querySelector('#log-server').length === 2")
    assert log.locator("img").count() == 0
    assert page.evaluate("window.hit") is None


def test_versions_show_what_differs_and_are_rolled_back_to(page: Any, cell: Saying) -> None:
    now = Version(version="b" * 32, checkpoint="gs://new", overrides={"A": "1"}, current=True)
    old = Version(
        version="a" * 32,
        checkpoint=NASTY,
        overrides={"A": "1", "DTYPE": '"int8"'},
        at_s=5.0,
        by=NASTY,
    )
    cell.kept_versions[MODEL] = [now, old]
    page.click("#tab-cell")
    page.get_by_role("button", name=f"Versions {MODEL}").click()
    dialog = page.locator("#versions-dialog")
    row = dialog.locator("li").nth(1)
    row.wait_for()
    assert row.locator(".minus").all_inner_texts() == ["- checkpoint: gs://new"]
    assert row.locator(".plus").all_inner_texts() == [
        f"+ checkpoint: {NASTY}",
        '+ DTYPE: "int8"',
    ]
    assert dialog.locator("img").count() == 0
    dialog.get_by_role("button", name="Roll back to aaaaaaaa").click()
    dialog.locator("li").nth(1).wait_for()
    assert cell.rolled_back == [(MODEL, "a" * 32)]


def test_an_adapter_names_the_model_that_it_belongs_to(page: Any, cell: Saying) -> None:
    spec = ModelSpec(
        model_id="/sax/test/poet",
        model_path=ADAPTER_PATH,
        checkpoint="c",
        replicas=1,
        overrides={BASE: f'"{MODEL}"'},
    )
    cell.models["/sax/test/poet"] = PublishedModel(spec)
    page.click("#tab-cell")
    page.get_by_text(f"adapter of {MODEL}").wait_for()


def test_a_key_without_rights_sees_its_own_only_and_no_log(browser: Any, tmp_path: Any) -> None:
    people = Identities(tmp_path, "root", "owner", "user")
    asks = Authentication(TokenFile(people.path))
    with gateway(Granting(people), asks) as url, tab(browser, url) as page:
        page.fill("#key", people.tokens["user"])
        page.keyboard.press("Enter")
        page.get_by_text("live", exact=True).wait_for()
        page.click("#tab-cell")
        page.locator("#requests-note", has_text="operators see all").wait_for()
        opened(page, "log").get_by_text("--admin_acl").wait_for()
        page.get_by_role("button", name=f"Versions {MODEL}").click()
        page.locator("#versions-list li").wait_for()
        assert page.get_by_role("button", name="Roll back").count() == 0
