"""The memory of one model by what takes it, as planned before it was loaded, and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sax.format import human_bytes as human


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """Bytes on all devices of one model."""

    weights: int = 0
    kv: int = 0  # the pool of KV pages
    state: int = 0  # of the slots: last tokens, counts, biases, masks
    workspace: int = 0  # temporaries of the largest step
    least: int = 0  # bytes with which it could be loaded with the same flags; 0: all of them
    slots: int = 0  # sequences at once; 0: not a language model
    context: int = 0  # tokens of one sequence, prompt and answer
    tokens: int = 0  # that the pages hold

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.state + self.workspace


COLUMNS = ("model", "weights", "KV pages", "slot state", "workspace", "in all", "slots x context")


def memory_rows(
    models: Iterable[tuple[str, MemoryParts]], *, total: int
) -> Iterable[tuple[str, ...]]:
    """Yield a row of COLUMNS per model, largest first, and one for what is free.

    total: bytes of memory of the server; 0: unknown.
    """
    by_size = sorted(models, key=lambda each: (-each[1].total, each[0]))
    for model_id, parts in by_size:
        bytes_of = (parts.weights, parts.kv, parts.state, parts.workspace, parts.total)
        yield (model_id, *(human(each, 1) for each in bytes_of), _sequences(parts))
    used = sum(parts.total for _, parts in by_size)
    if total:
        yield ("free", "", "", "", "", human(max(0, total - used), 1), f"of {human(total, 1)}")


def _sequences(parts: MemoryParts) -> str:
    if not parts.slots:
        return ""
    whole = f"{parts.slots} x {parts.context:,}"
    if parts.tokens >= parts.slots * parts.context:
        return whole
    return f"{whole}, {parts.tokens:,} tokens in all"


def memory_table(models: Iterable[tuple[str, MemoryParts]], *, total: int) -> str:
    """Return the rows as text, one line each, in columns."""
    rows = [COLUMNS, *memory_rows(models, total=total)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_line(row, widths) for row in rows)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *numbers, last = row
    cells = [first.ljust(widths[0])]
    cells += [text.rjust(width) for text, width in zip(numbers, widths[1:-1], strict=True)]
    return "  ".join((*cells, last)).rstrip()
