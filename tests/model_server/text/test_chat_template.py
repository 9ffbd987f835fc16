"""Templates render as transformers renders them, and a hostile one ends in an error."""

import pytest

from model_server.text.chat_template import ChatTemplate
from model_server.text.control_tokens import MARK
from sax.errors import CheckpointError, InvalidRequest
from sax.types import Message

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
    assert template.render(HELLO, add_generation_prompt=False) == "<s>[user] hello</s>"
    assert template.render([]) == "<s>[assistant] "


def test_control_tokens_in_roles_and_contents_are_marked() -> None:
    source = "{% for m in messages %}<|a|>{{ m.role }}:{{ m.content | trim }}{% endfor %}"
    template = ChatTemplate(source, special_tokens=["<|a|>"])
    assert template.render(HELLO) == "<|a|>user:hello"
    assert template.render([Message("<|a|>", " <|a|> ")]) == f"<|a|>{MARK}<|a|>:{MARK}<|a|>"


def test_blocks_leave_no_blank_lines() -> None:
    source = "{% for m in messages %}\n    {% if true %}\nx\n    {% endif %}\n{% endfor %}\n"
    assert render(source) == "x\n"


def test_loop_controls_and_loop_facts_work() -> None:
    source = (
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}"
        "{% endif %}{{ i }}/{{ loop.length }}{{ loop.last }} {% endfor %}"
    )
    assert render(source) == "0/9False 2/9False "


def test_filters_over_messages_work() -> None:
    source = (
        "{{ messages | map(attribute='content') | join('+') }}"
        "{% for m in messages | selectattr('role', 'equalto', 'user') %}!{% endfor %}"
        "{% filter upper %}a{% endfilter %}{{ messages[-1].content[1:3] }}"
    )
    assert render(source, [*HELLO, Message("tool", "b")]) == "hello+b!A"


def test_macros_and_namespaces_work() -> None:
    source = (
        "{% macro f(x) %}<{{ x }}>{% endmacro %}{% set n = namespace(k=0) %}"
        "{% for i in [1, 2] %}{% set n.k = n.k + i %}{% endfor %}{{ f(n.k) }}"
    )
    assert render(source) == "<3>"


def test_json_is_written_in_its_own_script() -> None:
    source = "{{ {'b': 'é<', 'a': [1]} | tojson }}{{ {'a': 1} | tojson(indent=2) }}"
    assert render(source) == '{"b": "é<", "a": [1]}{\n  "a": 1\n}'


def test_the_generation_block_is_only_its_body() -> None:
    assert render("a{% generation %}b{% endgeneration %}c") == "abc"


def test_tools_and_documents_are_none() -> None:
    assert render("{% if tools is not none or documents is not none %}x{% endif %}y") == "y"


def test_the_date_can_be_asked_for() -> None:
    year = render("{{ strftime_now('%Y') }}")
    assert len(year) == 4
    assert year.isdigit()


def test_a_template_can_refuse_messages_in_its_own_words() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
        "{{ f(99) }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{{ loop([1]) }}{% endfor %}",
        "{{ 'x' * 10 ** 9 }}",
        "{{ [1] * 10 ** 9 }}",
        "{{ 10 ** 9 * 'x' }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ 'x'.ljust(10 ** 9) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ [1] | tojson(indent=10 ** 9) }}",
        "{% set n = namespace(x='xxxx') %}{% for i in range(99) %}"
        "{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='xxxx') %}{% for i in range(99) %}"
        "{% set n.x = n.x + n.x %}{% endfor %}",
        "{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}",
    ],
)
def test_a_template_that_would_not_end_or_fit_is_stopped(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template"):
        render(source)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% if %}", "line 1"),
        ("a\n{{ x", "line 2"),
        ("{{ 'x' | center(9) }}", "center"),
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
