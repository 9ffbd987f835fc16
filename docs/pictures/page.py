"""Write docs/pictures/page_*.png: the gateway's page and the admin's before a real cell.

`make pictures` runs it, where playwright and a Chromium are installed (docs/how_to/development.md).
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.browser import chromium, tab, until
from tests.demo_model import demo_model
from tests.end_to_end.cell import SMOLLM2, Cell, local_plan

FOLDER = Path(__file__).parent
NAMES = ("page_chat", "page_compare", "page_cell", "page_operators", "page_narrow", "page_admin")
WIDE = {"viewport": {"width": 1180, "height": 720}}
NARROW = {"viewport": {"width": 375, "height": 700}, "color_scheme": "dark"}
CLIENTS = 10  # more than the slots, so that some wait
WATCHED_MS = 75_000


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="sax-") as folder:
        checkpoint = Path(folder) / demo_model().name
        checkpoint.symlink_to(demo_model())
        plan = local_plan(Path(folder), "--slots=4", "--max_context=2048", servers=2)
        with Cell(plan) as cell, chromium() as browser:
            cell.publish(str(checkpoint), replicas=2)
            chat(browser, cell)
            compare(browser, cell)
            narrow(browser, cell)
            with load(cell.url):
                watched(browser, cell)


def chat(browser: Any, cell: Cell) -> None:
    """An answer as text, and one as tokens with their rivals."""
    with tab(browser, cell.url, **WIDE) as page:
        settle(page)
        say(page, "Write a short Python function that adds two numbers.", max_tokens=60)
        page.check("#probabilities")
        say(page, "Name three primary colours.", max_tokens=30)
        page.locator(".token").nth(3).hover()
        save(page, "page_chat")


def compare(browser: Any, cell: Cell) -> None:
    """One question to the model with two temperatures, once as tokens."""
    with tab(browser, cell.url, **WIDE) as page:
        settle(page)
        page.click("#tab-compare")
        for side, temperature in (("left", "0"), ("right", "1.2")):
            summary = page.locator(f"#compare-{side} .own-settings > summary")
            summary.click()
            page.fill(f"#{side}-temperature", temperature)
            page.fill(f"#{side}-max_tokens", "60")
            page.set_checked(f"#{side}-probabilities", side == "right")
            summary.click()
        page.fill("#compare-prompt", "Why is the sky blue?")
        page.keyboard.press("Enter")
        page.locator("#compare-right .message.answer").wait_for()
        page.wait_for_selector("#compare-send:not([hidden])")
        save(page, "page_compare")


def narrow(browser: Any, cell: Cell) -> None:
    with tab(browser, cell.url, **NARROW) as page:
        settle(page)
        page.click("#settings-open")
        page.fill("#max_tokens", "90")
        page.keyboard.press("Escape")
        say(page, "Give me three tips to sleep well, as a list.")
        save(page, "page_narrow")


def watched(browser: Any, cell: Cell) -> None:
    """The cell after a minute under load, and the admin server's own page."""
    with tab(browser, cell.url, color_scheme="dark", **WIDE) as page:
        page.click("#tab-cell")
        page.wait_for_timeout(WATCHED_MS)
        save(page, "page_cell")
        page.locator("#keys-part summary").click()
        page.locator("#requests-part").scroll_into_view_if_needed()
        page.locator("#requests tr button").first.wait_for()
        page.evaluate("document.querySelector('#requests-part').scrollIntoView()")
        page.wait_for_timeout(2500)
        save(page, "page_operators")
    status = f"http://127.0.0.1:{cell.plan.status_port}/"
    with tab(browser, status, **WIDE) as page:
        page.get_by_text("live", exact=True).wait_for()
        save(page, "page_admin")


def settle(page: Any) -> None:
    until(page, "document.querySelector('#model').value !== ''")
    page.evaluate("document.querySelector('#temperature').value = '0'")


def say(page: Any, text: str, max_tokens: int | None = None) -> None:
    if max_tokens is not None:
        page.fill("#max_tokens", str(max_tokens))
    count = page.locator(".message.answer").count()
    page.fill("#prompt", text)
    page.keyboard.press("Enter")
    page.locator(".message.answer").nth(count).wait_for()
    page.wait_for_selector("#send:not([hidden])")


@contextmanager
def load(url: str) -> Iterator[None]:
    """Keep clients asking until the end of the block."""
    over = threading.Event()

    def ask(number: int) -> None:
        with httpx.Client(base_url=url, timeout=120, trust_env=False) as http:
            while not over.is_set():
                text = f"Tell me story number {number}."
                body = {"model": SMOLLM2, "messages": [{"role": "user", "content": text}]}
                http.post("/v1/chat/completions", json={**body, "max_tokens": 40 + 12 * number})
                over.wait(number / 2)  # more and fewer at once, as people are

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def save(page: Any, name: str) -> None:
    path = FOLDER / f"{name}.png"
    page.screenshot(path=path)
    sys.stdout.write(f"{path.name}: {path.stat().st_size >> 10} KiB\n")


if __name__ == "__main__":
    main()
