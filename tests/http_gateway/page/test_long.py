"""An answer of 20,000 tokens and a chat of 300 turns: what is drawn once is not drawn again.

Work is counted, in nodes that are made and values that are compared: times depend on the machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.browser import READY, until
from tests.http_gateway.page.test_browser import Saying, gateway

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

TOKENS = 20_000
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "**bold**", "`code`")
# A stream that comes from the page itself, 8 tokens in some 8 ms, and counters of the work.
FAKE = r"""
window.compared = 0;
const stringify = JSON.stringify;
JSON.stringify = (...given) => { window.compared++; return stringify(...given); };
const real = window.fetch;
window.fetch = async (path, init) => {
  if (!String(path).includes("chat/completions")) return real(path, init);
  let at = 0;
  const encoder = new TextEncoder();
  const body = new ReadableStream({ async pull(controller) {
    await new Promise((done) => setTimeout(done, 8));
    let text = "";
    for (const end = Math.min(at + 8, window.pieces.length); at < end; at++) {
      const ends = at === window.pieces.length - 1 && {finish_reason: "stop"};
      const choice = {index: 0, delta: {content: window.pieces[at]}, ...ends};
      text += "data: " + stringify({choices: [choice]}) + "\n\n";
    }
    const over = at >= window.pieces.length;
    controller.enqueue(encoder.encode(over ? text + "data: [DONE]\n\n" : text));
    if (over) controller.close();
  }});
  return new Response(body, {status: 200, headers: {"content-type": "text/event-stream"}});
};
"""
WATCH = """() => {
  window.made = 0;
  const into = document.querySelector("#transcript");
  const sizeOf = (node) => 1 + (node.querySelectorAll?.("*").length ?? 0);
  const count = ({addedNodes}) => addedNodes.forEach((node) => (window.made += sizeOf(node)));
  const watcher = new MutationObserver((list) => list.forEach(count));
  watcher.observe(into, {childList: true, subtree: true});
}"""


def prose(count: int) -> list[str]:
    ends = dict.fromkeys(range(60, count, 60), "\n\n")
    return [ends.get(i, f" {WORDS[i % len(WORDS)]}") for i in range(count)]


def code(count: int) -> list[str]:
    lines = (f"x{i} = f({i})\n" if i % 6 == 0 else " + g" for i in range(count - 2))
    return ["```python\n", *lines, "\n```\n"]


def items(count: int) -> list[str]:
    return [f"\n- item {i}" if i % 12 == 0 else f" {WORDS[i % len(WORDS)]}" for i in range(count)]


def table(count: int) -> list[str]:
    rows = ((f"| {i} | x", " y | ", "z |\n")[i % 3] for i in range(count - 1))
    return ["| a | b | c |\n|---|---|---|\n", *rows]


@contextmanager
def opened(browser: Any) -> Iterator[Any]:
    with gateway(Saying("x")) as url:
        context = browser.new_context(viewport={"width": 1200, "height": 760})
        context.add_init_script(FAKE)
        try:
            page = context.new_page()
            page.set_default_timeout(120_000)
            page.goto(url)
            until(page, READY)
            yield page
        finally:
            context.close()


def ask(page: Any, pieces: list[str]) -> None:
    page.evaluate("(pieces) => { window.pieces = pieces }", pieces)
    page.fill("#prompt", "Go")
    page.evaluate(WATCH)
    page.evaluate("window.compared = 0")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('#stop').hidden === false")
    until(page, "document.querySelector('#send').hidden === false", 300)


@pytest.mark.parametrize("shape", [prose, code, items, table])
def test_a_long_answer_is_made_once(browser: Any, shape: Any) -> None:
    with opened(browser) as page:
        ask(page, shape(TOKENS))
        page.wait_for_timeout(500)
        shown = page.evaluate("document.querySelectorAll('#transcript *').length")
        made = page.evaluate("window.made")
    # Texts count too; the last blocks are made anew as they grow, and code once more in colour.
    assert made < 4 * shown + 3000, (made, shown)


def test_a_new_answer_leaves_the_other_turns_alone(browser: Any) -> None:
    answer = "".join(prose(150)) + "\n\n- a\n- b\n\n| a |\n|---|\n| 1 |\n\n```\nx\n```\n"
    turns: list[Any] = []
    for number in range(150):
        turns.append({"turn": {"kind": "user", "text": f"Question {number}"}})
        turns.append({"turn": {"kind": "answer", "answer": {"content": answer}}})
    for place, turn in enumerate(turns):
        turn.update(parent=place - 1, chosen=True)
    chats = [{"name": "Long", "model": "", "turns": turns}]
    file = json.dumps({"format": "sax-chats", "version": 1, "chats": chats}).encode()
    with opened(browser) as page:
        load = {"name": "c.json", "mimeType": "application/json", "buffer": file}
        page.set_input_files("#chats-file", load)
        page.locator(".open-chat").click()
        until(page, "document.querySelectorAll('.message').length === 300")
        ask(page, prose(80))
        compared, made = page.evaluate("[window.compared, window.made]")
    assert made < 1500, made  # the others have some 10,000
    assert compared < 600, compared
