"""A headless Chromium for tests of pages: any message of an error in it fails the test."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.house import ROOT

_AXE = ROOT / ".cache/typescript/node_modules/axe-core/axe.min.js"
# Where Debian, and others, install it.
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

# Of the gateway's page: a model is chosen.
READY = "document.querySelector('#model').value !== ''"


def choose(page: Any, model: str, box: str = "#model") -> None:
    """Choose a model by its name, in the box that searches them."""
    page.locator(f"{box}-list [data-value='{model}']").wait_for(state="attached")
    page.fill(box, model)
    page.keyboard.press("Enter")


def program() -> str | None:
    """Path of a Chromium; SAX_TEST_CHROMIUM names another."""
    named = os.environ.get("SAX_TEST_CHROMIUM")
    return named or next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """Run a browser, or skip the test where there is none, with a word on how to get one."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is missing: pip install --group browser"
    )
    path = program()
    if path is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def tab(browser: Any, url: str, **settings: Any) -> Iterator[Any]:
    """Open a page in a profile of its own; fail at the end for any error in it.

    A reply of 4xx or 5xx is told in the console too, and is no error of the page's.
    """
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 760}, **settings})
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.extend(_told(message)))
    outside: list[str] = []
    page.on("request", lambda asked: outside.append(asked.url))
    page.set_default_timeout(60_000)
    page.goto(url)
    yield page
    context.close()
    assert not errors, errors
    assert all(each.startswith((url, "data:", "blob:")) for each in outside), outside


def _told(message: Any) -> list[str]:
    if message.type not in ("error", "warning") or "Failed to load resource" in message.text:
        return []
    return [message.text]


def until(page: Any, expression: str, within_s: float = 60) -> None:
    """Wait for a JavaScript expression to be true: playwright's own way would need `eval`, which
    the pages forbid."""
    deadline = time.monotonic() + within_s
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"never true: {expression}"
        page.wait_for_timeout(50)


def broken_rules(page: Any) -> list[str]:
    """Return the rules of axe that the page breaks as it is, each with an element; skip the test
    where axe is missing."""
    if not _AXE.exists():
        pytest.skip("axe is not here: make browser")
    if not page.evaluate("'axe' in window"):
        page.evaluate(_AXE.read_text())
    found = page.evaluate("axe.run().then(({violations}) => violations)")
    return [f"{each['id']}: {each['nodes'][0]['html'][:120]}" for each in found]
