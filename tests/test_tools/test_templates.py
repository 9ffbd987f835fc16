"""The golden calls are recorded from the templates that are there; the others keep their record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.house import ROOT
from tests.tools.templates.__main__ import FAMILIES, GOLDEN, SERVED_BY, recorded

BEFORE: dict[str, Any] = json.loads(GOLDEN.read_text())
HERMES = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n'
    "</tool_call>{{ '' if loop.last else '\\n' }}{% endfor %}<|end|>{% endfor %}{# tools #}"
)


def test_a_family_whose_template_is_gone_keeps_its_record(tmp_path: Path) -> None:
    (tmp_path / f"{FAMILIES['hermes']}.jinja").write_text(HERMES)
    told, kept = recorded(tmp_path, BEFORE)
    assert kept == [family for family in FAMILIES if family != "hermes"]
    assert {family: told[family] for family in kept} == {each: BEFORE[each] for each in kept}
    assert told["hermes"]["dialect"]["calls"]["mark"] == "<tool_call>"
    assert told["hermes"]["turn"] != BEFORE["hermes"]["turn"]


def test_a_family_without_template_and_record_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Hermes-2-Pro"):
        recorded(tmp_path, {})


def test_models_of_templates_are_served_by_families_that_there_are() -> None:
    assert SERVED_BY.keys() <= FAMILIES.keys() == BEFORE.keys()
    folder = ROOT / "model_server" / "models" / "families"
    assert set(SERVED_BY.values()) <= {path.stem for path in folder.rglob("*.py")}
