"""The golden cases are what transformers itself saves, at least one of each family; how files that
were made again are compared."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from tests.model_server.models.family_cases import config_of
from tests.tools.golden.__main__ import KINDS, third_of_all
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
    assert [*differences(made, kept)] == [f"{made}: nothing was made"]
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


def test_values_of_json_files_that_came_out_otherwise_are_named(tmp_path: Path) -> None:
    """Releases, scratch folders and the order of PEFT's sets are no difference; nor is rounding."""
    made, kept = tmp_path / "made.d", tmp_path / "kept.d"
    value = {"how": "torch 1", "ids": [1, 2], "x": {"y": 0.5, "bound": float("inf")}}
    value |= {"target_modules": ["q", "v"], "peft_version": "1"}
    same = value | {"how": "torch 2", "target_modules": ["v", "q"]}
    same["x"] = {"y": 0.5 + CLOSE / 2, "bound": float("inf")}
    del same["peft_version"]
    for folder, content in ((made, same), (kept, value)):
        folder.mkdir()
        (folder / "a.json").write_text(json.dumps(content))
        (folder / "b.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
        (folder / "c.model").write_bytes(b"same")
    assert [*differences(made, kept)] == []
    (made / "a.json").write_text(json.dumps(same | {"ids": [1, 3], "x": {"y": 0.6}}))
    (made / "c.model").write_bytes(b"other")
    assert [*differences(made, kept)] == [
        "a.json: ids.1 is 3, not 2",
        "a.json: x.bound is in one of them only",
        "a.json: x.y is 0.6, not 0.5",
        "c.model is not equal",
    ]


def test_three_nights_make_every_case() -> None:
    nights = [third_of_all(night) for night in range(3)]
    kinds = {kind: [*KINDS[kind].maker.CASES] for kind in KINDS}
    every = [(kind, name) for kind, names in kinds.items() for name in names]
    assert sorted(sum(nights, [])) == sorted(every)
    assert all(abs(len(one) - len(every) / 3) < len(KINDS) for one in nights)
