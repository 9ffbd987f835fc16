"""The forms of calls and reasoning are found in what templates write. The templates are made up; of
public ones tests/golden/calls.json has what they write."""

from __future__ import annotations

from model_server.text.rendering.call_probe import learnt, takes_system
from model_server.text.rendering.frames import TemplateParts
from model_server.text.rendering.worker import KnownTemplate
from sax.call_form import FUNCTIONS_ID, HERMES, ID, INDEX, NAME, Arguments, CallForm, IdForm
from tests.each_case import each_case

TURNS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}CALLS<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}{# tools #}"
)


def template(calls: str) -> KnownTemplate:
    body = f"{{% if m.tool_calls %}}{calls}{{% endif %}}"
    return KnownTemplate(TemplateParts(TURNS.replace("CALLS", body), "", "", ()))


def each(call: str, between: str = "") -> str:
    separator = f"{{% if not loop.last %}}{between}{{% endif %}}"
    return f"{{% for c in m.tool_calls %}}{call}{separator}{{% endfor %}}"


JSON = "{{ c.function.arguments | tojson }}"
NAMED = '{"name": "{{ c.function.name }}", '
PAIRS = (
    "{% for k, v in c.function.arguments.items() %}<p={{ k }}>\n"
    "{{ v if v is string else v | tojson }}\n</p>\n{% endfor %}"
)


@each_case("calls, form", [
    (each(f'<tool_call>\n{NAMED}"arguments": {JSON}}}\n</tool_call>', "{{ '\\n' }}"), HERMES),
    ("[TOOLS][" + each(f'{NAMED}"args": {JSON}, "id": "{{{{ c.id }}}}"}}', ", ") + "][/TOOLS]",
     CallForm(mark="[TOOLS]", begin="[TOOLS][", head=f'{{"name": "{NAME}", "args": ', tail="}",
              between=", ", end="][/TOOLS]", arguments_key="args")),
    ("<all>" + each(f"<one>{{{{ c.id }}}}:{{{{ c.function.name }}}}<args>{JSON}</one>") + "</all>",
     CallForm(Arguments.JSON, mark="<all>", begin="<all>", head=f"<one>{ID}:{NAME}<args>",
              tail="</one>", end="</all>")),
    ("<all>" + each(f"<one>functions.{{{{ c.function.name }}}}:{{{{ loop.index0 }}}}={JSON}</one>")
     + "</all>",
     CallForm(Arguments.JSON, mark="<all>", begin="<all>", head=f"<one>{FUNCTIONS_ID}=",
              tail="</one>", end="</all>", ids=IdForm.FUNCTIONS)),
    (each(f"<call {{{{ loop.index }}}}>{{{{ c.function.name }}}}\n{PAIRS}</call>"),
     CallForm(Arguments.PAIRS, mark="<call ", head=f"<call {INDEX}>{NAME}", tail="\n</call>",
              first_index=1, pair="\n<p=", colon={"": ">\n"}, close="\n</p>")),
    ("[" + each("{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}="
                "{{ v | tojson }}{% if not loop.last %}, {% endif %}{% endfor %})", ", ") + "]",
     CallForm(Arguments.PYTHON, begin="[", head=f"{NAME}(", tail=")", between=", ", end="]",
              comma=", ")),
    ("{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
     + each(f'{NAMED}"parameters": {JSON}}}'),
     CallForm(head=f'{{"name": "{NAME}", "parameters": ', tail="}", between="; ", one=True,
              arguments_key="parameters")),
    ("{{ m.tool_calls | length }} calls", None),
    # Nothing tells where a key ends, nor where a value does.
    (each(f"<c>{{{{ c.function.name }}}}{PAIRS.replace('>', ' ', 1)}</c>"), None),
    (each(f"<c>{{{{ c.function.name }}}}{PAIRS.replace('</p>', '')}</c>"), None),
])  # fmt: skip
def test_the_form_of_calls_is_found(calls: str, form: CallForm | None) -> None:
    assert learnt(template(calls).tried)[0] == form


def test_ids_that_a_template_refuses_are_short() -> None:
    short = "{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('id') }}"
    calls = f"{short}{{% endif %}}<c>{{{{ c.function.name }}}}{JSON}</c>{{% endfor %}}"
    form = template(calls).learnt.calls
    assert form is not None
    assert form.ids == IdForm.SHORT


@each_case("content, thoughts", [
    ("<think>{{ m.reasoning_content }}</think>{{ m.content }}", ("<think>", "</think>")),
    ("[THINK]{{ m.thinking }}[/THINK]\n{{ m.content }}", ("[THINK]", "[/THINK]")),
    ("<|t|>{{ m.reasoning }}<|e|><|a|>x<|c|>{{ m.content }}", ("<|t|>", "<|e|><|a|>x<|c|>")),
    ("I thought: {{ m.reasoning }} So: {{ m.content }}", None),
    ("{{ m.content }}", None),
])  # fmt: skip
def test_the_marks_around_reasoning_are_found(
    content: str, thoughts: tuple[str, str] | None
) -> None:
    source = TURNS.replace("{{ m.content or '' }}CALLS", content)
    assert learnt(KnownTemplate(TemplateParts(source, "", "", ())).tried)[1] == thoughts


def test_a_template_that_leaves_out_system_messages_is_told_apart() -> None:
    silent = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    for source, takes in ((TURNS, True), (silent, False)):
        assert takes_system(KnownTemplate(TemplateParts(source, "", "", ())).tried) is takes
