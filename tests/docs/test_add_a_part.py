"""docs/how_to/add_a_part.md shows a part as it is, beside a core that names none."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent

from model_server.engine.hooks import SequenceHooks
from model_server.engine.parts.thinking import BoundedThinking
from model_server.engine.registry import PARTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how_to" / "add_a_part.md").read_text()
ENGINE = ROOT / "model_server" / "engine"
_NOUNS = ("beam", "hypothes", "image", "grammar", "draft", "score", "longrope", "trace")
_NOUNS += ("thought", "thinking", "reasoning")


def test_the_code_of_the_page_is_that_of_the_part() -> None:
    """Methods stand flush left on the page, as a formatter has them."""
    part = (ENGINE / "parts" / "thinking.py").read_text()
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    pieces = [piece.strip("\n") for block in blocks for piece in block.split("\n\n\n")]
    methods = [piece for piece in pieces if piece.startswith("def ")]
    assert len(methods) == 5
    missing = [
        piece
        for piece in pieces
        if (indent(piece, "    ") if piece in methods else piece) + "\n" not in part
    ]
    assert missing == []
    assert BoundedThinking in PARTS


def test_the_page_lists_every_hook_and_names_parts_that_exist() -> None:
    table = PAGE[PAGE.index("| Hook") :]
    listed = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))))
    missing = [name for name in vars(SequenceHooks) if not name.startswith("_")]
    assert [name for name in missing if name not in listed] == []
    used = set(re.findall(r"`([A-Z]\w+)`", table)) - {
        "InvalidRequest",
        "SequenceHooks",
        "EnginePart",
    }
    assert used <= {part.__name__ for part in PARTS} | {"Drafting"}


def test_the_core_names_no_part() -> None:
    core = ["scheduler", "sequence", "live_sequences", "step_builder", "commits"]
    core += ["decodes", "series"]
    for file in core:
        text = (ENGINE / f"{file}.py").read_text()
        named = [noun for noun in _NOUNS if re.search(rf"\b_?{noun}", text, re.IGNORECASE)]
        assert named == [], file
        assert re.findall(r"engine\.(?:beams|drafting|parts|draft_model)\b", text) == [], file
