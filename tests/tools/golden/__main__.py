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
import shutil
import sys
import tempfile
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
    "converted": Kind("converted", f"{TORCH} sentencepiece"),  # and llama.cpp
    "converted_media": Kind("converted_media", f"{TORCH} sentencepiece"),  # and llama.cpp
    "adapters": Kind("adapters", f"{TORCH} peft"),
    "media": Kind("media.maker", f"{TORCH} torchvision pillow"),
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
    chosen = _arguments()
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
    if TORCH in KINDS[chosen.kind].needs:
        on_one_thread()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) if chosen.compare else chosen.into
        folder = root if chosen.kind in IN_NO_FOLDER else root / chosen.kind
        for name in chosen.cases or maker.CASES:
            if chosen.compare:
                _copy_given(GOLDEN / chosen.kind / name, folder / name)
            maker.make(name, folder)
            sys.stdout.write(f"{name}\n")
        if chosen.compare and (found := [*differences(root, GOLDEN)]):
            sys.exit("\n".join(["these are no longer what the tests compare with:", *found]))


def _copy_given(kept: Path, folder: Path) -> None:
    """Copy what a case is made from: all of its folder but arrays."""
    if kept.is_dir():
        shutil.copytree(kept, folder, ignore=shutil.ignore_patterns("*.npz"))


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
        "--compare", action="store_true", help="keep nothing; exit 1 if arrays are others now"
    )
    parser.add_argument(
        "--into", type=Path, default=GOLDEN, help="write below this folder, not tests/golden"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
