"""Computes with transformers what `tests.tools.random_configs` has drawn: run by it.

    python -m tests.tools.golden.families.drawn FOLDER

FOLDER has a folder for each draw, with candidates 0, 1, ...: config.json, and `base`, the name of
the case that it was drawn from (`media/...`: of that kind). The first one that transformers
computes becomes a case, as `families` describes it; of those before it, `rejected` says why not.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.tools.golden import common
from tests.tools.golden.families.case import Case
from tests.tools.golden.families.maker import ROWS, reference_of, write
from tests.tools.golden.media.maker import ROWS as MEDIA


def main() -> None:
    common.on_one_thread()
    for draw in sorted(Path(sys.argv[1]).iterdir()):
        candidates = sorted(draw.iterdir())
        chosen = next((each for each in candidates if _is_computed(each)), None)
        said = f"candidate {chosen.name}" if chosen else f"none of {len(candidates)}"
        sys.stdout.write(f"{draw.name}: {said}\n")
        sys.stdout.flush()


def _is_computed(folder: Path) -> bool:
    config = common.read_json(folder / "config.json")
    case = _row((folder / "base").read_text(), config)
    try:
        write(case, config, reference_of(case, config), folder)
    except Exception as error:  # whatever transformers raises for sizes that do not fit
        (folder / "rejected").write_text(f"{type(error).__name__}: {error}")
        return False
    return True


def _row(base: str, config: Mapping[str, Any]) -> Case:
    """A case of `families`, or one of `media` as it reads prompts of text."""
    if base in ROWS:
        return ROWS[base]
    media = MEDIA[base.removeprefix("media/")]
    inside = {**config, **config["text_config"]}.items()
    marks = [value for key, value in inside if "token_i" in key and isinstance(value, int)]
    return Case(
        media.name,
        published=media.published,
        stored=media.stored,
        left_out=media.left_out,
        below=min(mark for mark in marks if mark > 10),  # the others begin and end texts
    )


if __name__ == "__main__":
    main()
