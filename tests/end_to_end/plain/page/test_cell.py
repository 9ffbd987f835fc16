"""The page shows a real cell live, publishes and unpublishes; light, dark, narrow, by keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser import READY, tab, until
from tests.end_to_end.cell import SMOLLM2, Cell
from tests.end_to_end.plain.page.test_chat import BEGUN, ask, say

OTHER = "/sax/test/other"


def test_the_cell_is_shown_live(page: Any) -> None:
    page.click("#tab-cell")
    row = page.locator("#models tr", has_text=SMOLLM2)
    assert "1 of 1" in row.inner_text()
    servers = page.locator("#servers tr")
    assert "loaded" in servers.first.inner_text()
    assert "KV pages" in servers.first.inner_text()
    assert page.locator(".chart").count() == 4


def test_load_shows_in_figures_and_charts(page: Any) -> None:
    page.fill("#max_tokens", "300")
    page.fill("#temperature", "0")
    say(page, "Write a long story about a lighthouse.")
    page.click("#tab-cell")
    until(
        page,
        "[...document.querySelectorAll('#tiles li')].some("
        "tile => /requests running/.test(tile.textContent) && /^[1-9]/.test(tile.textContent))",
    )
    requests = page.locator(".chart svg[aria-label^='Requests: running 1']")
    requests.wait_for()
    tokens = page.locator(".chart svg[aria-label^='Tokens per second: generated']")
    until(
        page,
        "/generated [1-9]/.test(document.querySelector('.chart svg').getAttribute('aria-label'))",
    )
    assert re.search(r"M[\d.]+ [\d.]+", tokens.locator("path").first.get_attribute("d"))
    page.keyboard.press("Escape")


def test_a_model_is_published_and_unpublished(page: Any, gguf: Path, served: Cell) -> None:
    page.click("#tab-cell")
    page.get_by_role("button", name="Publish a model").click()
    dialog = page.locator("#publish-dialog")
    assert page.input_value("#publish-model") == "/sax/test/"
    page.fill("#publish-model", "no name")
    page.fill("#publish-path", "llama")
    page.fill("#publish-checkpoint", str(gguf))
    dialog.get_by_role("button", name="Publish").click()
    page.locator("#publish-trouble:not([hidden])").wait_for()
    assert "model" in page.locator("#publish-trouble").inner_text()
    page.fill("#publish-model", OTHER)
    page.fill("#publish-overrides", 'QUERY_FORMAT="raw"')
    dialog.get_by_role("button", name="Publish").click()
    page.locator("#publish-dialog[open]").wait_for(state="detached")
    row = page.locator("#models tr", has_text=OTHER)
    row.get_by_text("1 of 1").wait_for(timeout=240_000)
    assert page.locator(f"#model-list [data-value='{OTHER}']").count() == 1
    row.get_by_role("button", name=f"Unpublish {OTHER}").click()
    assert OTHER in page.locator("#unpublish-dialog").inner_text()
    page.locator("#unpublish-dialog").get_by_role("button", name="Unpublish").click()
    row.wait_for(state="detached")
    assert served.http.request("GET", "/listcell", params={"model": OTHER}).status_code == 404


def test_light_and_dark_follow_the_system_until_one_is_chosen(browser: Any, served: Cell) -> None:
    def ground(page: Any) -> int:
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", color)[:3]))

    with tab(browser, served.url, color_scheme="dark") as page:
        assert ground(page) < 150
        page.emulate_media(color_scheme="light")
        assert ground(page) > 700
        switch = page.locator("[data-theme-switch]")
        switch.click()
        switch.click()
        assert ground(page) < 150
        page.reload()
        assert ground(page) < 150
        assert "dark" in switch.get_attribute("aria-label")


@pytest.mark.parametrize("width", [320, 375, 768])
def test_a_narrow_screen_needs_no_sideways_scrolling(
    browser: Any, served: Cell, width: int
) -> None:
    with tab(browser, served.url, viewport={"width": width, "height": 720}) as page:
        until(page, READY)
        if width < 768:
            page.click("#settings-open")
            page.fill("#max_tokens", "24")
            page.keyboard.press("Escape")
        ask(page, "Write `code` in Python that adds two numbers.")
        for name in ("chat", "cell"):
            page.click(f"#tab-{name}")
            wide = "document.scrollingElement.scrollWidth"
            assert page.evaluate(wide) <= width, name
            view = page.evaluate(f"document.querySelector('#view-{name}').scrollWidth")
            assert view <= width, name


def test_everything_is_done_by_keyboard_alone(browser: Any, served: Cell) -> None:
    with tab(browser, served.url) as page:
        until(page, READY)
        keys, focus = page.keyboard, "document.activeElement.id"
        assert page.evaluate(focus) == "prompt"
        keys.type("Count to a hundred.")
        keys.press("Enter")
        until(page, BEGUN)
        keys.press("Escape")
        page.wait_for_selector("#send:not([hidden])")
        assert page.locator(".message.answer > .text").inner_text()
        keys.press("Alt+3")
        assert page.evaluate(focus) == "tab-cell"
        keys.press("ArrowLeft")
        assert page.evaluate(focus) == "tab-compare"
        keys.press("ArrowLeft")
        assert page.evaluate(focus) == "tab-chat"
        assert page.get_attribute("#tab-chat", "aria-selected") == "true"
        keys.press("?")
        assert page.locator("#help-dialog").is_visible()
        keys.press("Escape")
        assert not page.locator("#help-dialog").is_visible()
        keys.press("/")
        assert page.evaluate(focus) == "prompt"
        keys.press("Alt+n")
        assert page.locator(".message").count() == 0
        order: list[str] = []
        for _ in range(6):
            order.append(page.evaluate(focus))
            keys.press("Shift+Tab")
        assert order == ["prompt", "attach", "transcript", "share-open", "new-chat", "model"]


def test_the_admins_status_page_has_the_same_look(browser: Any, served: Cell) -> None:
    url = f"http://127.0.0.1:{served.plan.status_port}/"
    with tab(browser, url, color_scheme="dark") as page:
        page.get_by_text("live", exact=True).wait_for()
        assert SMOLLM2 in page.locator("#models").inner_text()
        assert "publish" in page.locator("#events").inner_text()
        page.fill("#models-filter", "no such model")
        page.get_by_text("No matching model.").wait_for()
        style = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(style) == "rgb(14, 18, 23)"
