"""Makes the golden files of tests/golden: what other implementations compute for small models.

Run by hand, in an environment of its own with the packages that the kind needs:

    python -m venv /tmp/golden && /tmp/golden/bin/pip install torch transformers ...
    /tmp/golden/bin/python -m tests.tools.golden --list
    /tmp/golden/bin/python -m tests.tools.golden families smollm3 smollm3_window
    /tmp/golden/bin/python -m tests.tools.golden sentences

A case is made from what its folder gives (config.json and what else the kind's page names) and a
row of the kind's table; without names, all cases of the kind are made. Files say how they were
made: those that name `tests.golden.make_KIND`, as this tool's predecessors were called, come out
the same. The page of a kind is the docstring of its module: KIND --about prints it.

kinds:
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from datetime import date
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from tests.tools.golden.common import GOLDEN, on_one_thread
from tests.tools.golden.comparison import differences


class Kind(NamedTuple):
    module: str  # with CASES, which has the names, and make(name, into)
    needs: str  # packages, beside numpy and safetensors

    @property
    def maker(self) -> Any:
        return importlib.import_module(f"tests.tools.golden.{self.module}")


TORCH = "torch transformers"
KINDS = {
    "families": Kind("families.maker", f"{TORCH} ml_dtypes"),
    "routes": Kind("routes", f"{TORCH} ml_dtypes"),
    "drafts": Kind("drafts", f"{TORCH} ml_dtypes"),
    "converted": Kind("converted", f"{TORCH} sentencepiece"),  # and llama.cpp
    "converted_media": Kind("converted_media", f"{TORCH} sentencepiece"),  # and llama.cpp
    "adapters": Kind("adapters", f"{TORCH} peft"),
    "media": Kind("media.maker", f"{TORCH} torchaudio torchvision pillow"),
    "classifiers": Kind("classifiers", TORCH),
    "sentences": Kind("sentences", f"{TORCH} sentence-transformers"),
    "tokens": Kind("tokens", TORCH),
    "seen": Kind("seen", f"{TORCH} torchvision pillow sentencepiece"),
    "images": Kind("images", f"{TORCH} pillow"),
    "sounds": Kind("sounds", f"{TORCH} tokenizers"),
    "voices": Kind("voices", TORCH),
    "model_types": Kind("model_types", TORCH),
    "pax": Kind("pax.maker", "ml_dtypes"),
    "quantised": Kind("quantised", "torch compressed-tensors"),
    "vocabularies": Kind("vocabularies", "sentencepiece tiktoken regex protobuf"),
    "real": Kind("real.maker", f"{TORCH} accelerate gguf regex soundfile ml_dtypes"),
}
IN_NO_FOLDER = {"real"}  # but directly in tests/golden


def main() -> None:
    os.environ.setdefault("TQDM_DISABLE", "1")
    chosen = _arguments()
    if chosen.third is not None:
        sys.exit(_again(third_of_all(chosen.third)))
    if chosen.list or not chosen.kind:
        for name, kind in KINDS.items():
            sys.stdout.write(f"{name}: {' '.join(kind.maker.CASES)}\n")
        return
    maker = KINDS[chosen.kind].maker
    if chosen.about:
        sys.stdout.write(f"{maker.__doc__}")
        return
    unknown = set(chosen.cases) - set(maker.CASES)
    if unknown:
        sys.exit(f"there is no case {', '.join(sorted(unknown))} of {chosen.kind}: see --list")
    cases = [(chosen.kind, name) for name in chosen.cases or maker.CASES]
    if chosen.compare:
        sys.exit(_again(cases))
    for kind, name in cases:
        _make(kind, name, chosen.into)
        sys.stdout.write(f"{name}\n")


def third_of_all(third: int) -> list[tuple[str, str]]:
    """Return every third case of each kind, so that three nights make all of them."""
    return [(kind, name) for kind in KINDS for name in [*KINDS[kind].maker.CASES][third::3]]


def _again(cases: Sequence[tuple[str, str]]) -> int:
    """Make cases in a folder that is thrown away, say of each how it came out, and return how many
    are not what the tests compare with."""
    wrong: dict[str, list[str]] = {}
    for place, (kind, name) in enumerate(cases, 1):
        began = time.monotonic()
        found = _found(kind, name)
        if found:
            wrong[f"{kind} {name}"] = found
        said = f"{len(found)} differences" if found else "as kept"
        seconds = time.monotonic() - began
        sys.stdout.write(f"[{place}/{len(cases)}] {kind} {name}: {said} ({seconds:.1f} s)\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(cases) - len(wrong)} of {len(cases)} cases are as kept\n")
    for case, found in wrong.items():
        sys.stdout.write("".join(f"{case}: {each}\n" for each in found))
    return min(len(wrong), 100)


def _found(kind: str, name: str) -> list[str]:
    """Return what differs of a case that is made again, or why it cannot be made."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with redirect_stdout(StringIO()):
                _make(kind, name, Path(scratch))
        except Exception as error:
            return [f"could not be made: {traceback.format_exception_only(error)[-1].strip()}"]
        return [*differences(Path(scratch), GOLDEN)]


def _make(kind: str, name: str, root: Path) -> None:
    if TORCH in KINDS[kind].needs:
        on_one_thread()
    KINDS[kind].maker.make(name, root if kind in IN_NO_FOLDER else root / kind)


def _arguments() -> argparse.Namespace:
    width = max(map(len, KINDS))
    lines = [f"  {name:{width}}  needs {kind.needs}" for name, kind in KINDS.items()]
    parser = argparse.ArgumentParser(
        "python -m tests.tools.golden",
        description=f"{__doc__}{chr(10).join(lines)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", nargs="?", choices=KINDS, metavar="KIND", help="what to make")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names; none: all of the kind")
    parser.add_argument("--list", action="store_true", help="print all cases of all kinds")
    parser.add_argument("--about", action="store_true", help="print what the kind's files hold")
    parser.add_argument(
        "--compare", action="store_true", help="keep nothing; fail if files come out otherwise"
    )
    parser.add_argument(
        "--third",
        type=lambda given: date.today().toordinal() % 3 if given == "today" else int(given),
        choices=range(3),
        metavar="0|1|2|today",
        help="compare a third of the cases of every kind; today: three days in turn compare all",
    )
    parser.add_argument(
        "--into", type=Path, default=GOLDEN, help="write below this folder, not tests/golden"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
