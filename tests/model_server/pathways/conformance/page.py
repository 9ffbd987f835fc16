"""The table of docs/explanation/pathways.md: kinds of requests by jaxlib, from their records.

python -m tests.model_server.pathways.conformance.page     writes it
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.model_server.pathways.conformance.record import (
    CARRIED_OUT,
    VERSIONS,
    ConformanceRecord,
    Spoken,
    kept,
)

PAGE = Path(__file__).parents[4] / "docs" / "explanation" / "pathways.md"
_ON_PAGE = re.compile(r"(?<=<!-- kinds -->\n).*?(?=\n\n)", re.DOTALL)


def table() -> str:
    """Return the table of all records."""
    records = [record for record in map(kept, VERSIONS) if record is not None]
    heads = [_head(record) for record in records]
    kinds = dict.fromkeys(kind for record in records for kind in record.kinds)
    rows = [[_name(kind), *(_cell(record, kind) for record in records)] for kind in kinds]
    lines = [["kind of request", *heads], ["---"] * (len(heads) + 1), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def written(page: str) -> str:
    """Return the page with the table of today's records."""
    return _ON_PAGE.sub(lambda _: table(), page)


def _head(record: ConformanceRecord) -> str:
    return (
        f"jaxlib {record.jaxlib}: protocol {record.protocol.agreed} of {_range(record.protocol)}, "
        f"serdes {record.serdes.agreed} of {_range(record.serdes)}"
    )


def _range(spoken: Spoken) -> str:
    return f"{spoken.least} to {spoken.most}"


def _name(kind: str) -> str:
    return kind.removesuffix("_request").replace("_", " ")


def _cell(record: ConformanceRecord, kind: str) -> str:
    told = record.kinds.get(kind)
    if told is None:
        return "not known to it"
    answer = "carried out" if told.answer == CARRIED_OUT else "refused in a sentence"
    return f"{answer}, sent" if told.sent else answer


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
