"""The modules of docs/how_to/custom_models.md, to be imported by a model server."""

from __future__ import annotations

import re
from functools import cache

from tests.demo_model import ROOT


@cache
def blocks() -> list[tuple[str, str]]:
    """Every block of the page: its language and its text."""
    page = (ROOT / "docs" / "how_to" / "custom_models.md").read_text()
    return re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def modules() -> dict[str, str]:
    """The page's modules by their names."""
    found = (
        (re.match(r"# (\w+)\.py\n", text), text) for kind, text in blocks() if kind == "python"
    )
    return {match[1]: text for match, text in found if match}
