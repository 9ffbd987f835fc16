"""What Praxis' layers compute for small models as Pax stores them: model.py, in numpy alone.

A file NAME.npz holds prompt i64[S], logits f32[S, V] and how. Variables are not stored: they follow
from their names.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.tools.golden import common
from tests.tools.golden.pax import cases
from tests.tools.golden.pax.model import logits_of, prompt_of, variables_of

_ROWS = {case.name: case for case in cases.CASES}
CASES = [*_ROWS]


def make(name: str, into: Path) -> None:
    case = _ROWS[name]
    prompt = prompt_of(case)
    logits = logits_of(case, variables_of(case), prompt).astype(np.float32)
    into.mkdir(parents=True, exist_ok=True)
    how = common.how("pax", name, "float64", ("numpy",))
    np.savez_compressed(into / f"{name}.npz", prompt=prompt, logits=logits, how=np.asarray(how))
