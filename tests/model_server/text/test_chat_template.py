"""Templates render as transformers renders them, and a hostile one ends in an error."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from model_server.sharing.confined.process import ProcessEnded, ProcessStarved
from model_server.text.chat_template import ChatTemplate, Renderer, RenderProcess
from model_server.text.control_tokens import MARK
from model_server.text.rendering.frames import Answer, Ask, TemplateParts
from sax.errors import CheckpointError, InvalidRequest, Unavailable
from sax.types import ChatOptions, Message
from tests.each_case import Failures, each_case
from tests.model_server.text.reference_jinja import reference_render

HELLO = [Message("user", "hello")]


def render(source: str, messages: list[Message] = HELLO) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(messages)


def test_a_chat_is_rendered_with_its_tokens() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] }}{{ eos_token }}"
        "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    template = ChatTemplate(source, "<s>", "</s>")
    assert template.render(HELLO) == "<s>[user] hello</s>[assistant] "
    assert template.render(HELLO, ChatOptions(add_generation_prompt=False)) == "<s>[user] hello</s>"
    assert template.render([]) == "<s>[assistant] "


def test_control_tokens_in_roles_and_contents_are_marked() -> None:
    source = "{% for m in messages %}<|a|>{{ m.role }}:{{ m.content | trim }}{% endfor %}"
    template = ChatTemplate(source, special_tokens=["<|a|>"])
    assert template.render(HELLO) == "<|a|>user:hello"
    assert template.render([Message("<|a|>", " <|a|> ")]) == f"<|a|>{MARK}<|a|>:{MARK}<|a|>"


@each_case(
    "source, text",
    [
        # No line of a block is left.
        ("{% for m in messages %}\n    {% if true %}\nx\n    {% endif %}\n{% endfor %}\n", "x\n"),
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}"
            "{% break %}{% endif %}{{ i }}/{{ loop.length }}{{ loop.last }} {% endfor %}",
            "0/9False 2/9False ",
        ),
        (
            "{{ messages | map(attribute='content') | join('+') }}"
            "{% for m in messages | selectattr('role', 'equalto', 'user') %}!{% endfor %}"
            "{% filter upper %}a{% endfilter %}{{ messages[-1].content[1:3] }}",
            "hello+b!A",
        ),
        (
            "{% macro f(x) %}<{{ x }}>{% endmacro %}{% set n = namespace(k=0) %}"
            "{% for i in [1, 2] %}{% set n.k = n.k + i %}{% endfor %}{{ f(n.k) }}",
            "<3>",
        ),
        ("{{ {'b': 'é<', 'a': [1]} | tojson }}", '{"b": "é<", "a": [1]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("a{% generation %}b{% endgeneration %}c", "abc"),
        ("{% if tools is not none or documents is not none %}x{% endif %}y", "y"),
    ],
)
def test_what_templates_of_models_use_works(source: str, text: str) -> None:
    chat = [*HELLO, Message("tool", "b")] if "selectattr" in source else HELLO
    assert render(source, chat) == text


def test_the_date_can_be_asked_for() -> None:
    year = render("{{ strftime_now('%Y') }}")
    assert len(year) == 4
    assert year.isdigit()


def test_a_template_can_refuse_messages_in_its_own_words() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


@each_case(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ nothing.at.all }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'other' %}",
    ],
)
def test_what_goes_wrong_inside_is_an_invalid_request(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template"):
        render(source)


@pytest.mark.extended
@each_case(
    "source",
    [
        "{{ 'x' * 10 ** 9 }}",
        "{{ [1] * 10 ** 9 }}",
        "{{ 10 ** 9 * 'x' }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ 'x'.ljust(10 ** 9) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ [1] | tojson(indent=10 ** 9) }}",
        "{% set n = namespace(x='xxxx') %}{% for i in range(99) %}"
        "{% set n.x = n.x + n.x %}{% endfor %}",
        "{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}",
    ],
)
def test_a_template_that_would_not_end_or_fit_is_stopped(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template"):
        render(source)


@each_case(
    "source, words",
    [
        ("{% if %}", "line 1"),
        ("a\n{{ x", "line 2"),
        ("{{ 'x' | nothing_of_this_name }}", "nothing_of_this_name"),
        ("{{ " + "(" * 5000, "compile"),
        ("{% for i in messages %}" * 60 + "{% endfor %}" * 60, "compile"),
        ("x" * (1 << 20) + "x", "characters"),
    ],
)
def test_a_template_that_does_not_parse_is_a_checkpoint_error(source: str, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        ChatTemplate(source)


def test_a_long_chat_is_well_inside_the_limits() -> None:
    source = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    chat = [Message("user", "x" * 1000)] * 5000
    assert len(render(source, chat)) == 5000 * len("user: x\n") + 5000 * 999


# Each takes minutes or gigabytes where nothing but a process of its own could stop it. `one` is 1
# and known only once the chat is, so that Jinja cannot compute the result while it compiles.
RUNAWAYS = {
    "round up": "{{ (one * 5.5) | round(100000000, 'ceil') }}",
    "round down to hundreds": "{{ (one * 5.5) | round(-100000000, 'floor') }}",
    "round a whole number": "{{ one | round(-100000000) }}",
    "slice": "{{ messages | slice(one * 1000000000) | list }}",
    "list of a range": "{% for i in range(90000) %}{{ range(99999) | list | length }}{% endfor %}",
    "search": "{% set x = range(99999) | list %}{% for i in range(60000) %}{{ -1 in x }}"
    "{% endfor %}",
    "search in text": "{% set n = namespace(x='a' * 900000) %}{% for i in range(60000) %}"
    "{{ (n.x + 'b') in (n.x + n.x) }}{% endfor %}",
    "replace": "{{ ('x' * 100000 * one) | replace('x', 'x' * 100000) }}",
    "join": "{{ ([1] * 1000000 * one) | join('x' * 100000) }}",
    "batch": "{{ messages | batch(one * 1000000000, 'x') | list }}",
    "product": "{{ 'x' * (10 ** 9 * one) }}",
    "format": "{{ '%999999999d' | format(one) }}",
    "format in braces": "{{ '{:>999999999}'.format(one) }}",
    "modulo": "{{ '%999999999d' % one }}",
    "center": "{{ 'x' | center(one * 999999999) }}",
    "indent": "{{ ('x\\n' * 100000 * one) | indent(999999) }}",
    "left": "{{ 'x'.ljust(one * 10 ** 9) }}",
    "json": "{{ [one] | tojson(indent=10 ** 9) }}",
    "range": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(99) }}",
    "loop in itself": "{% for x in [1] recursive %}{{ loop([1]) }}{{ loop([1]) }}{% endfor %}",
    "doubling": "{% set n = namespace(x='xxxx') %}{% for i in range(99) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubling a list": "{% set n = namespace(x=[1]) %}{% for i in range(99) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}",
    "sum": "{{ (range(99999) | list) | map('list') | sum(start=[]) }}{{ one * 9 ** 9 ** 9 }}",
    "words": "{{ ('x ' * 8000000 * one) | wordwrap(1) | length }}",
    "digits": "{% set n = namespace(x=7 * one) %}{% for i in range(30) %}"
    "{% set n.x = n.x * n.x %}{% endfor %}{{ n.x % 7 }}",
}
ONE = "{% set one = messages | length %}"
# Most take as long as a chat may: one of each kind by day.
BY_DAY = (
    *("round up", "search", "replace", "format", "range", "macros", "loop in itself"),
    *("doubling", "sum"),
)


@pytest.mark.extended
@pytest.mark.parametrize(
    "kinds",
    [
        BY_DAY,
        pytest.param([kind for kind in RUNAWAYS if kind not in BY_DAY], marks=pytest.mark.nightly),
    ],
    ids=["of each kind", "more"],
)
def test_no_single_operation_runs_away(kinds: Sequence[str]) -> None:
    failures = Failures()
    for kind in kinds:
        with failures.of(kind):
            with pytest.raises(InvalidRequest, match="the model's chat template") as caught:
                render(ONE + RUNAWAYS[kind])
            assert caught.value.param == "messages"
            good = render("{{ messages[0].content }}")
            assert good == "hello", "the next chat is rendered"
    assert not failures, str(failures)


@pytest.mark.extended
@pytest.mark.parametrize(
    "source",
    [
        "{{ 5.5 | round(100000000, 'ceil') }}",  # computed while it is compiled
        pytest.param(
            ONE + "{{ (one * 5.5) | round(100000000 * one, 'ceil') }}", marks=pytest.mark.nightly
        ),
        pytest.param(
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_template_that_runs_away_is_told_when_it_is_tried_out(source: str) -> None:
    with pytest.raises(CheckpointError, match="the chat template"):
        ChatTemplate(source).try_out()


def test_a_template_may_refuse_a_conversation_that_it_is_tried_on() -> None:
    template = ChatTemplate(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}ok"
    )
    template.try_out()
    assert template.render(HELLO) == "ok"


@pytest.mark.extended
def test_chats_beside_a_runaway_template_are_rendered() -> None:
    bomb = ChatTemplate("{{ (messages | length * 5.5) | round(100000000, 'ceil') }}")
    good = ChatTemplate("{{ messages[0].content }}")

    async def both() -> None:
        bombs = [asyncio.create_task(bomb.rendered(HELLO)) for _ in range(2)]
        texts = await asyncio.gather(*(good.rendered(HELLO) for _ in range(20)))
        assert texts == ["hello"] * 20
        assert not bombs[-1].done(), "no chat waited for all the bombs"
        with pytest.raises(InvalidRequest, match="was stopped"):
            await bombs[0]
        for task in bombs[1:]:  # Unavailable if those before it took too long
            with pytest.raises((InvalidRequest, Unavailable), match="template|slow to render"):
                await task

    asyncio.run(both())


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not Unicode"):
        render("{{ '\\ud800' }}")
    with pytest.raises(InvalidRequest, match="not Unicode"):
        render("{{ messages[0].content }}", [Message("user", "\ud800")])
    with pytest.raises(CheckpointError, match="not Unicode"):
        ChatTemplate("\ud800")


@each_case(
    "source",
    [
        "{% for m in messages %}{{ '<|{}|>{}'.format(m.role, m['content']) }}{% endfor %}",
        "{{ '{0:>9}|{1!r}|{0[0]}'.format(messages[0].content, messages[0].role) }}",
        "{{ '{role}: {content}'.format(**messages[0]) }}",
        "{{ '{role}: {content}'.format_map(messages[0]) }}",
        "{{ '%s=%05.1f' | format(messages[0].role, 2.25) }}{{ '%s' % messages[0].role }}",
        "{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}",
        "{{ 'a\\n\\nb' | indent('> ', blank=true) }}",
        "{% filter indent(width=3) %}x\ny\n{% endfilter %}",
        "{{ 'x' | center(9) }}{{ 'a b c' | wordwrap(1) }}{{ {'a': 1} | xmlattr }}",
        "{{ 'x'.ljust(4) }}{{ 'x'.rjust(4) }}{{ '7'.zfill(3) }}{{ 'x'.center(5) }}",
        "{{ messages | tojson(indent=20) }}{{ messages | tojson(separators=(',', ':')) }}",
        "{% generation %}{{ messages[0].content }}{% endgeneration %}\n",
        "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
        "  {% if true %}\n  x\n  {% endif %}\n{#- none -#}  y",
    ],
)
def test_the_text_is_that_of_the_reference(source: str) -> None:
    chat = [*HELLO, Message("assistant", "Grüße <b>"), Message("user", "a\nb")]
    assert render(source, chat) == reference_render(source, chat)


@each_case(
    "source",
    ["{{ '{0.__class__}'.format('x') }}", "{{ '{x.__init__}'.format_map({'x': cycler}) }}"],
)
def test_formats_reach_no_internals(source: str) -> None:
    assert render(source) == reference_render(source, HELLO) == ""


CHAT = (Message("user", "hello"),)
GOOD = TemplateParts("{{ messages[0].content }}", "", "", ())
BOMB = TemplateParts("{{ messages | length | round(-100000000) }}", "", "", ())


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> Renderer:
    """With half of the time for each chat, so that those that run away end sooner."""
    monkeypatch.setattr("model_server.text.chat_template.QUICK_S", 0.1)
    monkeypatch.setattr("model_server.text.chat_template.SLOW_S", 0.5)
    return Renderer()


def test_what_the_quick_lane_kills_the_slow_lane_renders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model_server.text.chat_template.QUICK_S", 0.01)
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
from model_server.text.chat_template import RenderProcess
from tests.model_server.text.test_chat_template import PROCESS_BOMB

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
    with pytest.raises(ProcessStarved, match="too busy: the process that renders it"):
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
from tests.model_server.text.test_chat_template import ASK, RenderProcess, pid_of
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
