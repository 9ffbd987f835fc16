"""Chats that are kept: reloaded, searched, edited, branched, cut to fit, exported; in a browser."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import READY, choose, tab, until
from tests.http_gateway.fake_cell import CONTEXT, published
from tests.http_gateway.page.test_browser import Saying, gateway

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]

# A picture of one pixel.
DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
TROUBLE = ".notices .trouble"


@pytest.fixture
def cell() -> Saying:
    return Saying("Four.")


@pytest.fixture
def page(browser: Any, cell: Saying) -> Iterator[Any]:
    with gateway(cell) as url, tab(browser, url) as opened:
        until(opened, READY)
        yield opened


def say(page: Any, text: str) -> None:
    page.fill("#prompt", text)
    page.keyboard.press("Enter")
    answered(page)


def answered(page: Any) -> None:
    page.locator(".message.answer[aria-busy='false']").last.wait_for()
    page.wait_for_selector("#send:not([hidden])")


def shown(page: Any) -> list[str]:
    return page.locator(".message > .text").all_inner_texts()


def sent(cell: Saying) -> list[str]:
    """The texts of the messages of the last request."""
    return [text for message in cell.requests[-1].prompt for text in message.texts]


def press(page: Any, message: int, name: str) -> None:
    one = page.locator(".message").nth(message)
    one.hover()
    one.get_by_role("button", name=name, exact=True).click()


def test_chats_outlive_a_reload_and_are_found_renamed_and_deleted(page: Any) -> None:
    say(page, "Two and two, <b>please</b>?")
    page.get_by_role("button", name="New chat").click()
    say(page, "The capital of Norway")
    page.fill("#prompt", "  a draft")
    page.reload()
    until(page, READY)
    assert page.input_value("#prompt") == "  a draft"
    names = page.locator("#chats-list .open-chat")
    names.nth(1).wait_for()
    assert names.all_inner_texts() == ["The capital of Norway", "Two and two, <b>please</b>?"]
    names.nth(1).click()
    assert shown(page) == ["Two and two, <b>please</b>?", "Four."]
    page.fill("#chats-search", "norway four")
    until(page, "document.querySelectorAll('#chats-list .open-chat').length === 1")
    page.get_by_label("More about The capital of Norway").click()
    page.get_by_role("button", name="Rename", exact=True).click()
    page.fill("#rename-name", "Oslo")
    page.keyboard.press("Enter")
    page.get_by_label("More about Oslo").click()
    page.locator("#chats").get_by_role("button", name="Delete", exact=True).click()
    assert "Oslo" in page.locator("#delete-dialog").inner_text()
    page.locator("#delete-dialog").get_by_role("button", name="Delete").click()
    page.fill("#chats-search", "")
    page.reload()
    names.first.wait_for()
    assert names.all_inner_texts() == ["Two and two, <b>please</b>?"]


def test_an_edited_message_is_sent_again_and_the_old_one_stays(page: Any, cell: Saying) -> None:
    say(page, "2 + 2?")
    say(page, "And 3 + 3?")
    cell.text = "Eight."
    press(page, 2, "Edit")
    form = page.locator(".message form:visible")
    form.locator("textarea").fill("And 4 + 4?")
    form.get_by_role("button", name="Send").click()
    page.get_by_text("Eight.").wait_for()
    answered(page)
    assert sent(cell) == ["2 + 2?", "Four.", "And 4 + 4?"]
    assert shown(page) == ["2 + 2?", "Four.", "And 4 + 4?", "Eight."]
    press(page, 2, "The version before")
    assert shown(page)[2:] == ["And 3 + 3?", "Four."]
    press(page, 0, "Delete")
    assert shown(page) == ["Four.", "And 3 + 3?", "Four."]


def test_a_branch_is_a_chat_of_its_own(page: Any) -> None:
    say(page, "One")
    say(page, "Two")
    press(page, 1, "Branch")
    assert shown(page) == ["One", "Four."]
    say(page, "Three")
    names = page.locator("#chats-list .open-chat")
    assert names.all_inner_texts() == ["One (branch)", "One"]
    names.nth(1).click()
    assert shown(page) == ["One", "Four.", "Two", "Four."]


def test_an_answer_goes_on(page: Any, cell: Saying) -> None:
    say(page, "Count")
    cell.text = " Five."
    with page.expect_request("**/v1/chat/completions") as asked:
        press(page, 1, "Continue")
    assert asked.value.post_data_json["continue_final_message"] is True
    page.get_by_text("Four. Five.").wait_for()


def test_a_message_that_got_no_answer_goes_back_into_the_box(page: Any, cell: Saying) -> None:
    say(page, "Hello")
    cell.text = ""
    page.route("**/v1/chat/completions", lambda route: route.abort())
    page.fill("#prompt", "  indented\n  text")
    page.keyboard.press("Enter")
    page.locator(TROUBLE).wait_for()
    assert page.input_value("#prompt") == "  indented\n  text"
    assert shown(page) == ["Hello", "Four."]
    page.unroute("**/v1/chat/completions")
    cell.text = "Better."
    page.keyboard.press("Enter")
    page.get_by_text("Better.").wait_for()
    assert sent(cell)[-1] == "  indented\n  text", "its spaces are kept"
    assert page.locator(TROUBLE).count() == 0


def test_a_chat_that_no_longer_fits_says_so_and_leaves_out_the_oldest(
    page: Any, cell: Saying
) -> None:
    text = "x" * (CONTEXT // 3)
    say(page, f"1{text}")
    say(page, f"2{text}")
    page.fill("#prompt", f"3{text}")
    page.keyboard.press("Enter")
    page.locator(TROUBLE).wait_for()
    assert f"{CONTEXT:,}" in page.locator(TROUBLE).inner_text()
    assert len(cell.requests) == 2, "nothing was sent"
    assert page.input_value("#prompt") == f"3{text}"
    page.get_by_role("button", name="Leave out the oldest turns and send").click()
    until(page, "document.querySelectorAll('.message.answer').length === 3")
    answered(page)
    assert [each[0] for each in sent(cell)] == ["2", "F", "3"]
    assert page.locator(".message.unsent").count() == 2, "they are shown"
    page.reload()
    until(page, READY)
    page.locator("#chats-list .open-chat").click()
    assert page.locator(".message.unsent").count() == 2


def test_chats_are_exported_and_imported(page: Any, browser: Any, tmp_path: Path) -> None:
    say(page, "Keep me")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Export all").click()
    path = tmp_path / saved.value.suggested_filename
    saved.value.save_as(path)
    assert json.loads(path.read_text())["chats"][0]["name"] == "Keep me"
    bad = tmp_path / "bad.json"
    bad.write_text("[1]")
    page.set_input_files("#chats-file", bad)
    page.locator("#chats-trouble:not([hidden])").wait_for()
    assert "holds no chats" in page.locator("#chats-trouble").inner_text()
    page.set_input_files("#chats-file", path)
    names = page.locator("#chats-list .open-chat")
    names.nth(1).wait_for()
    names.nth(1).click()
    assert shown(page) == ["Keep me", "Four."]


def test_an_answer_is_copied_where_the_browser_has_no_clipboard(browser: Any, cell: Saying) -> None:
    with gateway(cell) as url, tab(browser, url) as page:
        page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        page.reload()
        until(page, READY)
        say(page, "2 + 2?")
        press(page, 1, "Copy")
        page.get_by_role("button", name="Copied").wait_for()
        page.focus("#prompt")
        page.keyboard.press("Control+V")
        assert page.input_value("#prompt") == "Four."


def test_the_transcript_stays_where_one_reads(page: Any, cell: Saying) -> None:
    cell.text = "line\n\n" * 60
    say(page, "Long, please")
    page.evaluate("document.querySelector('#transcript').scrollTop = 40")
    page.fill("#prompt", "Again")
    page.evaluate("document.querySelector('#composer').requestSubmit()")
    until(page, "document.querySelectorAll('.message.answer').length === 2")
    answered(page)
    assert page.evaluate("document.querySelector('#transcript').scrollTop") == 40


def test_an_answer_that_is_left_is_kept(page: Any, cell: Saying) -> None:
    cell.text, cell.pause_s = "word " * 4000, 0.01
    page.fill("#prompt", "Long")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.message.answer > .text')?.textContent.length > 40")
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".message").count() == 0
    page.locator("#chats-list .open-chat").click()
    assert "stopped" in page.locator(".message.answer footer").inner_text()
    assert shown(page)[1].startswith("word word")


def test_the_next_request_is_shown_as_curl_and_python(page: Any) -> None:
    page.fill("#temperature", "0.5")
    say(page, "It's me")
    page.get_by_role("button", name="Code").click()
    texts = page.locator("#share-dialog pre").all_inner_texts()
    assert len(texts) == 2
    assert all("It" in text and "0.5" in text and "/v1" in text for text in texts)


def test_settings_are_remembered_for_each_model(browser: Any, cell: Saying) -> None:
    cell.models["/sax/test/other"] = published("/sax/test/other")
    with gateway(cell) as url, tab(browser, url) as page:
        first, second = sorted(cell.models)
        choose(page, first)
        page.fill("#temperature", "0.25")
        choose(page, second)
        assert page.input_value("#temperature") == ""
        page.fill("#temperature", "1")
        page.reload()
        choose(page, first)
        assert page.input_value("#temperature") == "0.25"


def test_files_go_with_a_message_and_stay_in_the_chat(page: Any, cell: Saying) -> None:
    note = {"name": "note.md", "mimeType": "", "buffer": b"Buy ```milk```\n"}
    broken = {"name": "x.pdf", "mimeType": "application/pdf", "buffer": b"%PDF\x00"}
    dot = {"name": "dot.png", "mimeType": "image/png", "buffer": DOT}
    page.set_input_files("#attach-file", [note, broken, dot])
    page.locator("#attach-trouble:not([hidden])").wait_for()
    assert "x.pdf" in page.locator("#attach-trouble").inner_text()
    page.fill("#prompt", "What is it?")
    with page.expect_request("**/v1/chat/completions") as asked:
        page.keyboard.press("Enter")
    picture, text = asked.value.post_data_json["messages"][0]["content"]
    assert base64.b64decode(picture["image_url"]["url"].partition(",")[2]) == DOT
    assert text["text"] == "note.md:\n````\nBuy ```milk```\n````\n\nWhat is it?"
    answered(page)
    page.reload()
    until(page, READY)
    page.locator("#chats-list .open-chat").click()
    shown_image = page.locator(".message.user img")
    assert shown_image.evaluate("image => image.naturalWidth") == 1
    assert page.locator(".message.user .file-name").inner_text() == "note.md"


def test_a_picture_is_pasted_and_removed(page: Any) -> None:
    page.focus("#prompt")
    page.evaluate(
        """([letters]) => {
            const bytes = Uint8Array.from(atob(letters), (each) => each.charCodeAt(0));
            const data = new DataTransfer();
            data.items.add(new File([bytes], "dot.png", {type: "image/png"}));
            const box = document.querySelector("#prompt");
            box.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true}));
        }""",
        [base64.b64encode(DOT).decode()],
    )
    page.get_by_role("button", name="Remove dot.png").click()
    assert not page.locator("#attachments").is_visible()


def test_a_chat_that_is_deleted_while_it_answers_stays_deleted(page: Any, cell: Saying) -> None:
    cell.text, cell.pause_s = "word " * 4000, 0.01
    page.fill("#prompt", "Long")
    page.keyboard.press("Enter")
    page.locator(".message.answer .text p").wait_for()
    page.get_by_label("More about Long").click()
    page.locator("#chats").get_by_role("button", name="Delete", exact=True).click()
    page.locator("#delete-dialog").get_by_role("button", name="Delete").click()
    page.wait_for_selector("#send:not([hidden])")
    page.reload()
    page.get_by_text("No chats yet.").wait_for()


def test_a_chat_that_is_left_while_it_answers_keeps_its_model(page: Any, cell: Saying) -> None:
    cell.models["/sax/test/other"] = published("/sax/test/other")
    choose(page, "/sax/test/other")
    say(page, "To the other")
    page.get_by_role("button", name="New chat").click()
    choose(page, "/sax/test/smollm2")
    cell.text, cell.pause_s = "word " * 4000, 0.01
    page.fill("#prompt", "To smollm2")
    page.keyboard.press("Enter")
    page.locator(".message.answer .text p").wait_for()
    chats = page.locator("#chats-list")
    chats.get_by_text("To the other").click()
    page.wait_for_selector("#send:not([hidden])")
    chats.get_by_text("To smollm2").click()
    assert page.input_value("#model") == "smollm2"
    assert "stopped" in page.locator(".message.answer footer").inner_text()


def test_a_message_without_an_answer_stays_where_the_box_has_the_next_one(
    page: Any, cell: Saying
) -> None:
    held: list[Any] = []
    page.route("**/v1/chat/completions", lambda route: held.append(route))
    with page.expect_request("**/v1/chat/completions"):
        page.fill("#prompt", "First")
        page.keyboard.press("Enter")
    page.fill("#prompt", "the next one")
    held[0].abort()
    page.locator(TROUBLE).wait_for()
    assert shown(page) == ["First"]
    assert page.input_value("#prompt") == "the next one"


def test_a_chosen_model_stays_chosen_when_another_one_comes(page: Any, cell: Saying) -> None:
    cell.models["/sax/test/other"] = published("/sax/test/other")
    choose(page, "/sax/test/other")
    say(page, "Hello")
    page.reload()
    until(page, READY)
    page.locator("#chats-list .open-chat").click()
    choose(page, "/sax/test/smollm2")
    cell.models["/sax/test/third"] = published("/sax/test/third")
    page.locator("#model-list [data-value='/sax/test/third']").wait_for(state="attached")
    assert page.input_value("#model") == "smollm2"


def test_a_browser_that_forbids_storage_has_the_page_all_the_same(browser: Any) -> None:
    forbidden = "() => { throw new DOMException('denied', 'SecurityError'); }"
    stores = ("localStorage", "sessionStorage", "indexedDB")
    script = "".join(f"Object.defineProperty(window, '{e}', {{get: {forbidden}}});" for e in stores)
    with gateway(Saying("Four.")) as url, tab(browser, url) as page:
        page.add_init_script(script)
        page.reload()
        until(page, READY)
        page.fill("#temperature", "0.5")
        say(page, "2 + 2?")
        assert shown(page) == ["2 + 2?", "Four."]
        assert "keeps nothing" in page.locator("#chats-trouble").inner_text()


def test_a_reload_in_the_midst_of_an_answer_keeps_what_came(page: Any, cell: Saying) -> None:
    cell.text, cell.pause_s = "word " * 4000, 0.01
    page.fill("#prompt", "Long")
    page.keyboard.press("Enter")
    chat = page.locator("#chats-list .open-chat")
    chat.wait_for()
    page.reload()
    until(page, READY)
    chat.click()
    said, answered = shown(page)
    assert (said, answered[:1]) == ("Long", "w")
    page.get_by_role("button", name="Continue").wait_for(state="attached")


def test_on_a_phone_panels_are_closed_by_what_opened_them(browser: Any, cell: Saying) -> None:
    with gateway(cell) as url, tab(browser, url, viewport={"width": 375, "height": 760}) as page:
        until(page, READY)
        for name in ("settings", "chats"):
            for shows in (True, False):
                page.click(f"#{name}-open")
                assert page.locator(f"#{name}").is_visible() is shows
