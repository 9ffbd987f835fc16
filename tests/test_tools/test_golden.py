"""The golden cases are what transformers itself saves, at least one of each family."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from tests.model_server.models.family_cases import config_of
from tests.tools.golden.comparison import CLOSE, differences
from tests.tools.golden.families.maker import ROWS


def test_of_each_family_a_case_has_the_tensors_that_transformers_saves() -> None:
    """Else what it saves might be refused, as it was of MiniMax and OLMo Hybrid."""
    by_family: dict[str, list[bool]] = defaultdict(list)
    for name, case in ROWS.items():
        kind = str(case.known_as.get("model_type") or config_of(name)["model_type"])
        by_family[kind.removesuffix("_text")].append(case.is_as_saved)
    # transformers 5.24 saves some tensors of these by names that no published checkpoint has.
    renamed = {"kimi_k25", "kimi_linear"}
    assert {family for family, saved in by_family.items() if not any(saved)} == renamed


def test_arrays_that_came_out_otherwise_are_named(tmp_path: Path) -> None:
    made, kept = tmp_path / "made", tmp_path / "kept"
    assert [*differences(made, kept)] == [f"{made}: no array was made"]
    for folder in (made, kept):
        (folder / "case").mkdir(parents=True)
    arrays = {"ids": np.arange(3), "logits": np.ones(2, np.float32)}
    np.savez(kept / "case" / "golden.npz", **arrays)
    np.savez(made / "case" / "golden.npz", **arrays | {"logits": np.full(2, 1 + CLOSE / 2, "f4")})
    assert [*differences(made, kept)] == []
    changed = {
        "ids": np.arange(1, 4),
        "logits": np.full(2, 1 + 2 * CLOSE, "f4"),
        "more": arrays["ids"],
    }
    np.savez(made / "case" / "golden.npz", **changed)
    told = [text.split(": ", 1)[1] for text in differences(made, kept)]
    assert told[:2] == ["more is in one of them only", "ids is not equal"]
    assert told[2].startswith("logits differs by up to")
