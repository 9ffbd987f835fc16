"""Makes tests/golden/pax/*.npz: what Praxis' layers compute for the models of pax_maker/cases.py.

Run by hand from the repository root; needs numpy alone:

    python -m tests.golden.make_pax

Each file holds prompt i64[S], logits f32[S, V] and how. Variables are not stored: they follow from
their names.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tests.golden.pax_maker.cases import CASES
from tests.golden.pax_maker.model import logits_of, prompt_of, variables_of

HERE = Path(__file__).parent / "pax"


def main() -> None:
    HERE.mkdir(exist_ok=True)
    for case in CASES:
        prompt = prompt_of(case)
        logits = logits_of(case, variables_of(case), prompt)
        how = f"python -m tests.golden.make_pax; numpy {np.__version__}, float64"
        file = HERE / f"{case.name}.npz"
        np.savez_compressed(
            file, prompt=prompt, logits=logits.astype(np.float32), how=np.asarray(how)
        )
        sys.stdout.write(f"{case.name}: logits up to {np.abs(logits).max():.1f}\n")


if __name__ == "__main__":
    main()
