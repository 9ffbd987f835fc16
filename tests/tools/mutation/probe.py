"""Probes: lines that write down which test was running when a line of product code ran.

They are put into a clone before every drawn break, so that one run of the tests tells which tests
could catch which break. A probe works in every process that a test starts, because pytest names the
running test in the environment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.tools.mutation.breaks import Break

HITS = "SAX_MUTATION_HITS"
MODULE = "sax/_mutation_probe.py"
_SOURCE = f'''\
import os

_seen = set()


def hit(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0]
    if test and (number, test) not in _seen:
        _seen.add((number, test))
        try:
            with open(os.environ["{HITS}"], "a") as file:
                file.write(f"{{number}}\\t{{test}}\\n")
        except (OSError, KeyError):
            pass  # a confined process may write nothing
'''


def insert(root: Path, breaks: list[Break]) -> None:
    """Put a probe before the statement of each break; the line numbers behind it shift."""
    (root / MODULE).write_text(_SOURCE)
    by_file: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, each in enumerate(breaks):
        by_file[each.path].append((each.statement, number))
    for path, probes in by_file.items():
        lines = (root / path).read_text().split("\n")
        for line, number in sorted(probes, reverse=True):
            text = lines[line - 1]
            indent = text[: len(text) - len(text.lstrip())]
            lines.insert(line - 1, f'{indent}__import__("sax._mutation_probe")._mutation_probe.hit({number})')
        (root / path).write_text("\n".join(lines))


def files_that_hit(records: Iterable[str]) -> dict[int, set[str]]:
    """Break -> the test files that ran its line."""
    hit: defaultdict[int, set[str]] = defaultdict(set)
    for record in records:
        number, _, test = record.partition("\t")
        hit[int(number)].add(test.split("::")[0])
    return hit
