"""The page chats with a real model: streams, stops, shows probabilities, calls tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import READY, choose, tab, until
from tests.end_to_end.cell import Cell
from tests.end_to_end.plain.conftest import CALLER
from tests.end_to_end.tool_template import TOOLS

BEGUN = "document.querySelector('.message.answer > .text')?.textContent.length > 8"


def say(page: Any, text: str) -> None:
    page.fill("#prompt", text)
    page.keyboard.press("Enter")


def ask(page: Any, text: str, **fields: str) -> Any:
    """Send a message and wait for the whole answer; returns it."""
    for name, value in fields.items():
        page.fill(f"#{name}", value)
    answers = page.locator(".message.answer")
    count = answers.count()
    say(page, text)
    answers.nth(count).wait_for()
    page.wait_for_selector("#send:not([hidden])")
    return answers.nth(count)


def test_an_answer_streams_in_and_tells_its_speed(page: Any) -> None:
    page.fill("#temperature", "0")
    page.fill("#max_tokens", "60")
    page.evaluate(
        """() => {
            window.lengths = new Set();
            new MutationObserver(() => {
                const text = document.querySelector(".message.answer > .text");
                if (text) window.lengths.add(text.textContent.length);
            }).observe(document.querySelector("#transcript"), {subtree: true, childList: true,
                                                              characterData: true});
        }"""
    )
    answer = ask(page, "Tell me about the sea.")
    assert len(page.evaluate("[...window.lengths]")) > 5, "it came in pieces"
    told = answer.locator("footer").inner_text()
    assert re.search(
        r"60 tokens · [\d.,]+ tokens/s · first after [\d.]+ m?s · prompt \d+ tok", told
    )
    assert "cut at the limit of tokens" in told


def test_a_stopped_answer_keeps_what_came_and_the_chat_goes_on(page: Any, served: Cell) -> None:
    page.fill("#max_tokens", "1500")
    page.fill("#temperature", "0")
    say(page, "List 200 facts about animals.")  # more than 1,500 tokens
    until(page, BEGUN)
    page.click("#stop")
    page.wait_for_selector("#send:not([hidden])")
    first = page.locator(".message.answer").first
    assert "stopped" in first.locator("footer").inner_text()
    kept = first.locator("> .text").inner_text()
    assert kept
    # The gateway let go of it: the cell computes for nobody.
    served.eventually(
        lambda: all(
            one["running"] == 0
            for server in served.http.get("/cell").json()["servers"]
            for one in server["servables"]
        ),
        "no request runs",
    )
    second = ask(page, "Say hello.", max_tokens="8")
    assert second.locator("> .text").inner_text()
    assert first.locator("> .text").inner_text() == kept


def test_the_escape_key_stops_an_answer(page: Any) -> None:
    page.fill("#max_tokens", "1500")
    say(page, "Tell me a long story.")
    until(page, BEGUN)
    page.keyboard.press("Escape")
    page.wait_for_selector("#send:not([hidden])")
    assert "stopped" in page.locator(".message.answer footer").inner_text()


def test_a_token_tells_its_probability_and_its_rivals(page: Any) -> None:
    page.check("#probabilities")
    ask(page, "Name a colour.", temperature="0", max_tokens="12")
    tokens = page.locator(".token")
    assert tokens.count() == 12
    tokens.nth(3).hover()
    card = page.locator(".token-card:visible")
    assert card.locator(".rival").count() >= 5
    assert "%" in card.inner_text()
    chosen = card.locator(".rival.chosen").inner_text()
    share = float(tokens.nth(3).get_attribute("data-share"))
    assert 0 < share <= 1
    assert re.search(r"[\d.]+%", chosen)
    # By keyboard, from token to token.
    page.mouse.move(0, 0)
    tokens.nth(0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert tokens.nth(2).evaluate("node => node === document.activeElement")
    assert page.locator(".token-card:visible").count() == 1


def test_the_system_prompt_and_the_fields_reach_the_model(page: Any) -> None:
    fields = {"temperature": "1", "seed": "7", "max_tokens": "16"}
    with page.expect_request("**/v1/chat/completions") as sent:
        first = ask(page, "Name a fruit.", system="Answer in one word.", **fields)
    body = sent.value.post_data_json
    assert body["messages"][0] == {"role": "system", "content": "Answer in one word."}
    assert (body["temperature"], body["seed"], body["max_tokens"]) == (1, 7, 16)
    assert not {"top_p", "top_k", "min_p", "stop", "tools"} & body.keys()
    text = first.locator("> .text").inner_text()
    first.get_by_role("button", name="Again").click()
    page.wait_for_selector("#send:not([hidden])")
    assert page.locator(".message.answer > .text").inner_text() == text, "the same seed"


def test_a_field_out_of_range_is_told_in_the_gateways_words(page: Any) -> None:
    page.fill("#temperature", "7")
    say(page, "Hi.")
    page.locator("#transcript .trouble").wait_for()
    assert "temperature" in page.locator("#transcript .trouble").inner_text()
    assert page.input_value("#prompt") == "Hi."


def test_settings_outlive_a_reload_and_a_new_chat_empties_the_page(page: Any) -> None:
    ask(page, "Hi.", max_tokens="4", system="Be kind.")
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".message").count() == 0
    page.reload()
    until(page, READY)
    assert (page.input_value("#max_tokens"), page.input_value("#system")) == ("4", "Be kind.")


@pytest.fixture
def caller(browser: Any, calling: Cell) -> Iterator[Any]:
    """The page with a model whose template has tools."""
    with tab(browser, calling.url) as page:
        choose(page, CALLER)
        yield page


def test_a_call_is_a_card_and_its_result_goes_back(caller: Any) -> None:
    page = caller
    page.locator("#settings").get_by_text("Tools", exact=True).click()
    page.fill("#tools", "not JSON")
    assert "not JSON" in page.locator("#settings .trouble:visible").inner_text()
    page.fill("#tools", json.dumps(TOOLS[:1]))
    page.select_option("#tool-choice", "required")
    answer = ask(page, "The weather in Oslo?", temperature="0", max_tokens="120")
    card = answer.locator(".call")
    assert card.locator("b").inner_text() == "get_weather"
    assert {"city", "days"} <= json.loads(card.locator("pre").inner_text()).keys()
    page.select_option("#tool-choice", "none")
    page.fill("#max_tokens", "12")
    card.locator("textarea").fill("sunny, 20 C")
    with page.expect_request("**/v1/chat/completions") as sent:
        answer.get_by_role("button", name="Send results").click()
    call, result = sent.value.post_data_json["messages"][-2:]
    assert result["content"] == "sunny, 20 C"
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]
    page.wait_for_selector("#send:not([hidden])")
    assert page.locator(".message.answer").last.locator("> .text").inner_text()
    assert page.locator(".message.result").inner_text().endswith("sunny, 20 C")
