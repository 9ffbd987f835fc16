"""Two lanes: a slow chat is still rendered, a runaway is refused, and neither holds up others."""

import pytest

from model_server.text.rendering.frames import Answer, Ask, TemplateParts
from model_server.text.rendering.renderer import Renderer
from sax.chat import Message
from sax.errors import Unavailable

CHAT = (Message("user", "hello"),)
GOOD = TemplateParts("{{ messages[0].content }}", "", "", ())
BOMB = TemplateParts("{{ messages | length | round(-100000000) }}", "", "", ())


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> Renderer:
    """With half of the time for each chat, so that those that run away end sooner."""
    monkeypatch.setattr("model_server.text.rendering.renderer.QUICK_S", 0.1)
    monkeypatch.setattr("model_server.text.rendering.renderer.SLOW_S", 0.5)
    return Renderer()


def test_what_the_quick_lane_kills_the_slow_lane_renders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model_server.text.rendering.renderer.QUICK_S", 0.01)
    slow = TemplateParts("{% for i in range(99999) %}{% endfor %}done", "", "", ())
    lanes = Renderer()  # more work than 10 ms
    for _ in range(2):
        assert lanes.submit(Ask(b"slow", CHAT), slow).result() == Answer("text", "done")


@pytest.mark.extended
def test_a_runaway_chat_is_refused_and_others_go_on(lanes: Renderer) -> None:
    bombs = [lanes.submit(Ask(b"bomb", CHAT), BOMB) for _ in range(2)]
    assert lanes.submit(Ask(b"good", CHAT), GOOD).result() == Answer("text", "hello")
    assert not bombs[-1].done(), "the chat did not wait for all of them"
    assert bombs[0].result().kind == "runaway"
    for bomb in bombs[1:]:  # refused if those before it took too long
        assert isinstance(bomb.exception(), Unavailable) or bomb.result().kind == "runaway"


@pytest.mark.extended
def test_a_chat_that_nobody_waits_for_is_not_rendered(lanes: Renderer) -> None:
    bombs = [lanes.submit(Ask(b"bomb", CHAT), BOMB) for _ in range(50)]
    assert all(bomb.cancel() for bomb in bombs[1:])
    assert lanes.submit(Ask(b"good", CHAT), GOOD).result() == Answer("text", "hello")
    assert bombs[0].result().kind == "runaway"


@pytest.mark.extended
def test_a_template_is_tried_out_beside_the_chats(lanes: Renderer) -> None:
    assert lanes.try_out(Ask(b"bomb", CHAT), BOMB).kind == "runaway"
    assert lanes.try_out(Ask(b"bad", None), TemplateParts("{%", "", "", ())).kind == "broken"
    assert lanes.try_out(Ask(b"good", None), GOOD) == Answer("text")
