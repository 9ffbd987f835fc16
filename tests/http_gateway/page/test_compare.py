"""Two models side by side, and one of many models found by its name; in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import READY, choose, tab, until
from tests.http_gateway.fake_cell import published
from tests.http_gateway.page.test_browser import HOSTILE, Saying, gateway

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]
LEFT, RIGHT = "#compare-left", "#compare-right"


@pytest.fixture
def cell() -> Saying:
    return Saying("Four.")


@pytest.fixture
def page(browser: Any, cell: Saying) -> Iterator[Any]:
    cell.models["/sax/test/other"] = published("/sax/test/other")
    with gateway(cell) as url, tab(browser, url) as opened:
        until(opened, READY)
        opened.click("#tab-compare")
        yield opened


def ask_both(page: Any, text: str) -> None:
    page.fill("#compare-prompt", text)
    page.keyboard.press("Enter")
    for side in (LEFT, RIGHT):
        page.locator(f"{side} .message.answer[aria-busy='false']").last.wait_for()
    page.wait_for_selector("#compare-send:not([hidden])")


def test_one_question_goes_to_both_each_with_its_own_settings(page: Any, cell: Saying) -> None:
    choose(page, "/sax/test/smollm2", "#model-left")
    choose(page, "/sax/test/other", "#model-right")
    for side, temperature in ((LEFT, "0.25"), (RIGHT, "1.5")):
        page.locator(f"{side} .own-settings > summary").click()
        page.fill(f"#{side.removeprefix('#compare-')}-temperature", temperature)
        page.locator(f"{side} .own-settings > summary").click()
    ask_both(page, "2 + 2?")
    asked = {each.model_id: each.sampling.temperature for each in cell.requests}
    assert asked == {"/sax/test/smollm2": 0.25, "/sax/test/other": 1.5}
    for side in (LEFT, RIGHT):
        assert page.locator(f"{side} .message > .text").all_inner_texts() == ["2 + 2?", "Four."]
    ask_both(page, "And 3 + 3?")
    assert len(cell.requests) == 4
    assert len(cell.requests[-1].prompt) == 3


def test_a_side_answers_again_alone_and_is_kept_as_a_chat(page: Any, cell: Saying) -> None:
    ask_both(page, "2 + 2?")
    answer = page.locator(f"{RIGHT} .message.answer")
    answer.hover()
    answer.get_by_role("button", name="Again", exact=True).click()
    page.locator(f"{RIGHT} .versions:not([hidden])").wait_for()
    page.locator(f"{RIGHT} .message.answer[aria-busy='false']").wait_for()
    assert len(cell.requests) == 3
    assert page.locator(f"{LEFT} .versions:not([hidden])").count() == 0
    answer.hover()
    answer.get_by_role("button", name="Branch", exact=True).click()
    assert page.locator("#view-chat .message > .text").all_inner_texts() == ["2 + 2?", "Four."]
    page.locator("#chats-list .open-chat").wait_for()


def test_stop_stops_both_and_a_side_that_fails_says_why(page: Any, cell: Saying) -> None:
    cell.text, cell.pause_s = "word " * 4000, 0.01
    page.fill("#compare-prompt", "Long")
    page.keyboard.press("Enter")
    for side in (LEFT, RIGHT):
        page.locator(f"{side} .message.answer .text p").wait_for()
    page.keyboard.press("Escape")
    page.wait_for_selector("#compare-send:not([hidden])")
    feet = page.locator("#view-compare .message.answer footer").all_inner_texts()
    assert len(feet) == 2
    assert all("stopped" in foot for foot in feet)
    page.click("#compare-clear")
    assert page.locator("#view-compare .message").count() == 0


def test_nothing_that_models_say_becomes_markup_on_either_side(page: Any, cell: Saying) -> None:
    cell.text = HOSTILE
    ask_both(page, "<b>hello</b>")
    marked = page.locator("#view-compare .transcript").locator("img, script, b, i, iframe")
    assert marked.count() == 0
    assert page.evaluate("window.hit") is None


def test_one_of_a_hundred_models_is_found_with_the_keyboard_alone(browser: Any) -> None:
    cell = Saying("Four.")
    for number in range(100):
        name = f"/sax/test/family{number % 7}_{number}" if number != 50 else "/sax/test/<b>x"
        cell.models[name] = published(name)
    with gateway(cell) as url, tab(browser, url) as page:
        until(page, READY)
        page.keyboard.press("Alt+m")
        assert page.locator("#model-list [role=option]").count() == 100
        assert "1 more" in page.locator("#model-list").inner_text()
        page.keyboard.type("family3 94")
        assert page.locator("#model-list [role=option]").count() == 1
        page.keyboard.press("Enter")
        assert page.input_value("#model") == "family3_94"
        page.keyboard.press("Alt+m")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Escape")
        assert page.input_value("#model") == "family3_94"
        page.keyboard.press("/")
        page.keyboard.press("Alt+m")
        page.keyboard.type("nothing at all")
        assert "no model has these words" in page.locator("#model-list").inner_text()
        page.keyboard.press("Escape")
        page.fill("#prompt", "Hi")
        page.keyboard.press("Enter")
        page.locator(".message.answer[aria-busy='false']").wait_for()
    assert cell.requests[0].model_id == "/sax/test/family3_94"
