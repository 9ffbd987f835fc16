"""The page on quantised checkpoints has every kind of GGUF, and how it is held."""

from __future__ import annotations

import re
from pathlib import Path

from model_server.checkpoints.gguf.kinds import KINDS
from model_server.checkpoints.huggingface.prequantized.methods import FORMATS, METHODS
from model_server.checkpoints.packed import FLOAT4, Packing

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "quantised_checkpoints.md").read_text()


def words(packing: Packing) -> str:
    kind = {FLOAT4: "float4"}.get(packing.kind, packing.kind)
    return f"{kind} per {packing.block}{' with offsets' if packing.offset else ''}"


def test_every_kind_of_gguf_is_listed_as_it_is_held() -> None:
    rows = dict(re.findall(r"^\| ([A-Z0-9_]+) \| (.*) \|$", PAGE, re.MULTILINE))
    assert rows == {kind.name: words(of.packing) for kind, of in KINDS.items()}


def test_every_method_and_format_is_listed() -> None:
    plain = {"dense", "mixed-precision"}
    for name in (*METHODS, *(set(FORMATS) - plain)):
        assert f"`{name}`" in PAGE, name
