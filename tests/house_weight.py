"""Weighs the house: what a reader must hold in mind, and the budgets that keep it from growing.

    python -m tests.house_weight          # every measure beside its budget
    python -m tests.house_weight --set    # budgets anew, from today's measures

Moving code between files meets none of these: lines count per room, files by what they reach, and
modules that one other module reads count as a hop for nobody's good. `house_weight.toml` has the
budgets; `tests/test_layering.py` holds them.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests import house

BUDGETS = Path(__file__).with_name("house_weight.toml")
_ENTRIES = (
    "model_server/engine/scheduler.py",
    "model_server/engine/running/runner.py",
    "model_server/serving/handler.py",
    "model_server/loading/loader.py",
    "model_server/process/server.py",
    "http_gateway/openai/routes.py",
)
_LONG = 450  # lines of a file that is no table
_ROOM = 1.05  # what --set leaves for growth

Measures = Mapping[str, Mapping[str, int]]


def measures() -> Measures:
    return {
        "closures": {entry: len(house.reached([entry])) for entry in _ENTRIES},
        "counts": _counts(),
        "lines": _lines(),
    }


def over_budget() -> list[str]:
    """Return a sentence for each measure above its budget."""
    budgets = tomllib.loads(BUDGETS.read_text())
    return [
        f"{kind}: {name} is {value}, its budget {budgets[kind].get(name, 0)}"
        for kind, values in measures().items()
        for name, value in values.items()
        if value > budgets[kind].get(name, 0)
    ]


def _lines() -> dict[str, int]:
    """Lines by room of the whole house, as `house.house()` has them."""
    made: Counter[str] = Counter()
    for path in house.sources():
        parts = path.relative_to(house.ROOT).parts
        opened = parts[0] == house.OPENED and len(parts) > 2
        made["/".join(parts[: 2 if opened else 1])] += len(path.read_text().splitlines())
    return dict(sorted(made.items()))


def _counts() -> dict[str, int]:
    graph = house.file_graph()
    readers = Counter(target for targets in graph.values() for target in targets)
    code = [name for name in graph if not name.endswith(("__init__.py", "__main__.py"))]
    bodies = {name: (house.ROOT / name).read_text() for name in graph}
    # Not NotLoaded, which is an error.
    kinds = r"isinstance\([^()]*, [^()]*(?:\bLoaded|Servable|Runner)\w*"
    return {
        "files": len(graph),
        "modules with one importer": sum(readers[name] == 1 for name in code),
        "files of more than 450 lines": sum(
            len(text.splitlines()) > _LONG for text in bodies.values()
        ),
        "classes named Runner": sum(
            len(re.findall(r"^class \w*Runner\b", text, re.MULTILINE)) for text in bodies.values()
        ),
        "files that define encode": sum(
            bool(re.search(r"^ +(?:async )?def encode\(", text, re.MULTILINE))
            for name, text in bodies.items()
            if name.startswith("model_server/") and "/text/" not in name
        ),
        "isinstance of kinds": sum(len(re.findall(kinds, text)) for text in bodies.values()),
        "slots of Sequence": _slots(house.ROOT / "model_server/engine/sequence.py"),
    }


def _slots(path: Path) -> int:
    for node in ast.walk(house.parsed(path)):
        if isinstance(node, ast.ClassDef) and node.name == "Sequence":
            for line in node.body:
                if isinstance(line, ast.Assign) and isinstance(line.value, ast.Tuple):
                    return len(line.value.elts)
    raise LookupError("Sequence has no __slots__")


def _set(values: Measures) -> None:
    """Write budgets: counts as they are, since they should only fall; the rest with some room."""
    lines = ["# Written by `python -m tests.house_weight --set`; lower them when you can."]
    for kind, found in values.items():
        lines += ["", f"[{kind}]"]
        grown = {name: n if kind == "counts" else int(n * _ROOM) for name, n in found.items()}
        lines += [f'"{name}" = {most}' for name, most in grown.items()]
    BUDGETS.write_text("\n".join(lines) + "\n")


def main(arguments: list[str]) -> int:
    values = measures()
    if arguments == ["--set"]:
        _set(values)
    budgets = tomllib.loads(BUDGETS.read_text())
    for kind, found in values.items():
        for name, value in found.items():
            sys.stdout.write(f"{kind:9} {value:7} of {budgets[kind].get(name, 0):7}  {name}\n")
    return 1 if over_budget() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
