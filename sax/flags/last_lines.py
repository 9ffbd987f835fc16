"""The last lines that this process logged, kept in memory for its operators."""

from __future__ import annotations

import logging
from collections import deque
from typing import TypedDict

_KEPT = 400
_LONGEST = 2000  # characters of a line


class LogLine(TypedDict):
    """One line; `at_s` in seconds since the epoch."""

    at_s: float
    level: str
    logger: str
    text: str


_lines: deque[LogLine] = deque(maxlen=_KEPT)


class LastLines(logging.Handler):
    """Keeps what is logged, whatever format the process writes."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        _lines.append(
            LogLine(
                at_s=record.created,
                level=record.levelname.lower(),
                logger=record.name,
                text=text[:_LONGEST],
            )
        )


def last_lines() -> list[LogLine]:
    """Return the lines that are kept, the newest last."""
    return list(_lines)
