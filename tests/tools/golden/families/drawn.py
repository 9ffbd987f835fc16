"""Computes with transformers what `tests.tools.random_configs` has drawn: run by it.

    python -m tests.tools.golden.families.drawn FOLDER

FOLDER has a folder for each draw, with candidates 0, 1, ...: config.json, and `base`, the name of
the case that it was drawn from. The first one that transformers computes becomes a case, as
`families` describes it; of those before it, `rejected` says why not.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.tools.golden import common
from tests.tools.golden.families.maker import ROWS, reference_of, write


def main() -> None:
    common.on_one_thread()
    for draw in sorted(Path(sys.argv[1]).iterdir()):
        candidates = sorted(draw.iterdir())
        chosen = next((each for each in candidates if _is_computed(each)), None)
        said = f"candidate {chosen.name}" if chosen else f"none of {len(candidates)}"
        sys.stdout.write(f"{draw.name}: {said}\n")
        sys.stdout.flush()


def _is_computed(folder: Path) -> bool:
    case = ROWS[(folder / "base").read_text()]
    config = common.read_json(folder / "config.json")
    try:
        write(case, config, reference_of(case, config), folder)
    except Exception as error:  # whatever transformers raises for sizes that do not fit
        (folder / "rejected").write_text(f"{type(error).__name__}: {error}")
        return False
    return True


if __name__ == "__main__":
    main()
