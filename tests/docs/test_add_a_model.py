"""docs/how_to/add_a_model.md shows the code that is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how_to" / "add_a_model.md").read_text()
FAMILY = ROOT / "model_server" / "models" / "families" / "dense" / "smollm3.py"
CASES = ROOT / "tests" / "tools" / "golden" / "families" / "dense.py"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_every_block_of_code_is_a_piece_of_the_files_that_the_page_names() -> None:
    assert len(BLOCKS) >= 6
    written = FAMILY.read_text() + CASES.read_text()
    for path in (FAMILY, CASES):
        assert f"`{path.relative_to(ROOT).as_posix()}`" in PAGE
    assert [block for block in BLOCKS if _flat(block) not in _flat(written)] == []


def _flat(text: str) -> str:
    """Lines without indentation: a page shows a row of a table as a formatter has it."""
    return "\n".join(line.strip() for line in text.strip().splitlines())


def test_every_file_that_the_page_names_exists() -> None:
    named = re.findall(r"`((?:model_server|tests)/[\w./-]+)`", PAGE)
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []
