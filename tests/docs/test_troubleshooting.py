"""Every text that docs/how_to/troubleshooting.md quotes is one that a process writes."""

from __future__ import annotations

import re

import pytest

from tests.docs.blocks import PAGES
from tests.house import sources

PAGE = PAGES["docs/how_to/troubleshooting.md"]
# What stands for a value: `...`, and words in capitals.
_VALUE = re.compile(r"\.\.\.|\b(?:[A-Z]|ADDRESS|KEY|MODEL|NAME|PATH|PHASE|PLACE)\b")
_JOINT = re.compile(r'"\s+f?"')  # between two pieces of one string


def quoted(page: str) -> list[str]:
    """The pieces between values of all quoted texts of three words or more."""
    spans = [span for span in re.findall(r"`([^`]+)`", page) if not span.startswith(("sax ", "--"))]
    texts = (span.strip() for text in spans for span in _VALUE.split(text))
    return [text for text in texts if text.count(" ") >= 2]


@pytest.mark.extended
def test_every_quoted_text_is_in_the_code() -> None:
    code = "".join(_JOINT.sub("", path.read_text()) for path in sources())
    pieces = quoted(PAGE)
    assert len(pieces) > 30
    assert [piece for piece in pieces if piece not in code] == []
