"""A text that `sax quantize` cannot read is refused before the checkpoint is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_server.plan.commands import _text_of
from sax.errors import InvalidRequest


def test_a_text_that_is_not_utf_8_is_refused_and_none_of_it_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes("naïve".encode("latin-1"))
    with pytest.raises(InvalidRequest, match="is not UTF-8 .* at byte 2"):
        _text_of(str(file))
    file.write_text("naïve", encoding="utf-8")
    assert _text_of(str(file)) == "naïve"
