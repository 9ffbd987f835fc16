"""docs/reference/benchmarks.md: its head, and tables put into it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

from model_server.kernels.cpu.native import in_use
from tests.demo_model import ROOT

PAGE = ROOT / "docs" / "reference" / "benchmarks.md"
HEAD = """# Benchmarks

Remake this page with `make bench` (about half an hour, best on a quiet machine), and the tables
beside other servers with `make race`. Every table is written by `tests/tools/bench`; no figure is
typed by hand. The machines these run on are shared and noisy, so read ratios between columns of one
table; absolute figures move by a third between runs.
"""


def with_tables(page: str, tables: list[str], machine: str, *, first: bool = False) -> str:
    """Replace the tables of the same titles in a page, or add them at its end or its beginning.

    Each says on which machine it was made if that is not the page's.
    """
    elsewhere = "" if machine in page else f"\n{machine}"
    head, *sections = _sections(page)
    by_title = {section.partition("\n")[0]: section for section in sections}
    made: dict[str, str] = {}
    for table in tables:
        title, _, rest = table.partition("\n")
        made[title] = f"{title}\n{elsewhere}{rest}"
    by_title = made | by_title | made if first else by_title | made
    return head + "\n".join(section.rstrip("\n") + "\n" for section in by_title.values())


def tables_of_their_own(page: str) -> list[str]:
    """The tables that name their machine themselves, which `make bench` does not make again."""
    return [section for section in _sections(page)[1:] if "\nMachine: " in section]


def _sections(page: str) -> list[str]:
    return re.split(r"(?m)^(?=## )", page)


def machine() -> str:
    versions = ", ".join(f"{name} {_version(name)}" for name in ("jax", "jaxlib", "grpcio"))
    cpu = next(_cpu_names(), platform.processor())
    return (
        f"Machine: {os.cpu_count()} cores, {cpu}, {instructions()}; "
        f"Python {platform.python_version()}; {versions}.\n"
    )


def instructions() -> str:
    """Name the instruction set of the native kernels here."""
    kernels = in_use()
    return kernels.instructions if kernels else "no native kernels"


def _version(name: str) -> str:
    return importlib.metadata.version(name)


def _cpu_names() -> Iterator[str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
