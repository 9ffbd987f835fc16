"""Two lanes: a slow chat is still rendered, a runaway is refused, and neither holds up others."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from model_server.sharing.confined.process import ProcessEnded
from model_server.text.rendering.frames import Answer, Ask, TemplateParts
from model_server.text.rendering.renderer import Renderer, RenderProcess
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


PARTS = TemplateParts("{{ messages[0].content }}!", "", "", ())
ASK = Ask(b"key", (Message("user", "hello"),), parts=PARTS)
ENDLESS = TemplateParts("{{ messages | length | round(-100000000) }}", "", "", ())
PROCESS_BOMB = Ask(b"bomb", ASK.chat, parts=ENDLESS)


def pid_of(process: RenderProcess) -> int:
    running = process._process  # pyright: ignore[reportPrivateUsage]
    assert running is not None
    return running.pid


def test_a_template_is_sent_once() -> None:
    process = RenderProcess(1.0)
    without = Ask(ASK.key, ASK.chat)
    assert process.answer(without) == Answer("unknown")
    assert process.answer(ASK) == process.answer(without) == Answer("text", "hello!")
    process.stop()
    assert process.answer(without) == Answer("unknown"), "another process"
    process.stop()


@pytest.mark.extended
def test_a_limit_of_time_ends_the_process_and_the_next_chat_starts_another() -> None:
    process = RenderProcess(0.2)
    with pytest.raises(ProcessEnded, match="was stopped"):
        process.answer(PROCESS_BOMB)
    assert process.answer(ASK) == Answer("text", "hello!")
    process.stop()


IGNORING_SERVER = """
import signal

from model_server.sharing.confined.process import ProcessEnded
from model_server.text.rendering.renderer import RenderProcess
from tests.model_server.text.rendering.test_renderer import PROCESS_BOMB

signal.signal(signal.SIGPROF, signal.SIG_IGN)
process = RenderProcess(0.2)
try:
    process.answer(PROCESS_BOMB)
except ProcessEnded as ended:
    print(ended)
process.stop()
"""


@pytest.mark.extended
def test_a_limit_of_time_holds_where_the_server_ignores_the_timers_signal() -> None:
    """As a server does that has loaded libtpu, which goes on to send it: not to be tried here."""
    told = subprocess.run([sys.executable, "-c", IGNORING_SERVER], capture_output=True, text=True)
    assert "of processor time" in told.stdout, told.stderr


def test_a_process_that_somebody_killed_is_replaced() -> None:
    process = RenderProcess(1.0)
    process.answer(ASK)
    os.kill(pid_of(process), signal.SIGKILL)
    os.waitid(os.P_PID, pid_of(process), os.WEXITED | os.WNOWAIT)
    assert process.answer(ASK) == Answer("text", "hello!")
    process.stop()


def test_a_stopped_process_ends_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model_server.sharing.confined.process.WALL_S", 0.1)
    process = RenderProcess(1.0)
    process.start()
    os.kill(pid_of(process), signal.SIGSTOP)
    with pytest.raises(ProcessEnded, match="did not end within"):
        process.answer(ASK)


def test_the_process_knows_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAX_TOKEN", "secret")
    process = RenderProcess(1.0)
    process.answer(ASK)
    try:
        environment = Path(f"/proc/{pid_of(process)}/environ").read_bytes()
    finally:
        process.stop()
    assert b"PYTHONPATH" in environment
    assert b"secret" not in environment


PARENT = """
import os, signal
from tests.model_server.text.rendering.test_renderer import ASK, RenderProcess, pid_of
process = RenderProcess(1.0)
process.answer(ASK)
print(pid_of(process), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.extended
def test_the_process_ends_with_a_server_that_is_killed() -> None:
    parent = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True)
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    child = Path(f"/proc/{int(parent.stdout)}")
    while child.exists() and "State:\tZ" not in (child / "status").read_text():
        time.sleep(0.01)  # forever, if it does not end
