"""Makes tests/golden/families/*: shrunken random models and what the reference says of them.

Run by hand, in an environment with torch and transformers, from the repository root:

    python -m tests.golden.make_families [NAME ...]

Each folder holds config.json (as a published checkpoint of the family has it), tensors.json (name
in published checkpoints -> shape), golden.npz (prompt i64[S]; logits f32[S, V], of an encoder
hidden f32[S, D] and pooled f32[D]; how), and overrides.json where the model is served with any.
Saxml's families have no checkpoints: their config.json names the model path, and tensors.json the
weights by their path in the module. Weights are not stored: they follow from the names (see
random_tensor).
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.golden.families_maker import praxis, reference
from tests.golden.families_maker.case import Case, Shapes
from tests.golden.families_maker.praxis import PraxisCase

HERE = Path(__file__).parent / "families"


def all_cases() -> list[Case | PraxisCase]:
    """Return the CASES of every module below families_maker."""
    place = Path(__file__).parent / "families_maker"
    paths = sorted(path.relative_to(place).with_suffix("") for path in place.rglob("*.py"))
    names = [".".join(("tests", "golden", place.name, *path.parts)) for path in paths]
    return [case for name in names for case in getattr(importlib.import_module(name), "CASES", [])]


def make(case: Case | PraxisCase) -> None:
    """Write one folder."""
    if isinstance(case, PraxisCase):
        config = {"model_path": case.path}
        return write(case, config, case.shapes, praxis.outputs_of(case), praxis.how(case))
    shapes = reference.tensors_of(case)
    outputs = reference.outputs_of(case, shapes)
    everything = shapes | case.spare(case.config)
    return write(case, case.config, everything, outputs, reference.how(case))


def write(
    case: Case | PraxisCase,
    config: Mapping[str, Any],
    shapes: Shapes,
    outputs: Mapping[str, np.ndarray],
    how: str,
) -> None:
    folder = HERE / case.name
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    lines = [f"  {json.dumps(name)}: {json.dumps(shapes[name])}" for name in sorted(shapes)]
    (folder / "tensors.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    if case.overrides:
        write_json(folder / "overrides.json", case.overrides)
    np.savez_compressed(folder / "golden.npz", how=np.asarray(how), **outputs)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    wanted = set(sys.argv[1:])
    cases = all_cases()
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), "two cases have one name"
    assert wanted <= set(names), f"there is no case {wanted - set(names)}"
    for case in cases:
        if not wanted or case.name in wanted:
            make(case)
            sys.stdout.write(f"{case.name}\n")


if __name__ == "__main__":
    main()
