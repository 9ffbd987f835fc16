"""Tables of what was done to islands and what came of it (markdown), and what was not right."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from tests.tools.chaos.pathways.faults import WAYS, Fault
from tests.tools.chaos.pathways.held import grown, per_process, resident
from tests.tools.chaos.pathways.judging import LIMIT_S
from tests.tools.chaos.pathways.story import Chapter
from tests.tools.report import table

_FAULTS = (
    "fault",
    "times (in the midst of a call)",
    f"longest wait for an answer, s (limit {LIMIT_S:g})",
    "all numbers right again after s: median, max",
    "right numbers",
    "wrong numbers",
    "errors of calls",
    "reads of old arrays: right, told as lost, of an earlier incarnation",
)
_HELD = (
    "process",
    "quiet moments",
    "threads",
    "open files",
    "resident MiB, early and late",
)
_NAMES = {"manager": "resource manager", "proxy": "proxy server"}


def table_of_faults(chapters: Sequence[Chapter]) -> str:
    """Return a row for each role and way, and one for all."""
    groups: dict[str, list[Chapter]] = {}
    for role in ("manager", "worker", "proxy", "client"):
        for how in WAYS:
            for chapter in chapters:
                fault = chapter.blow.fault
                if (fault.role, fault.how) == (role, how):
                    groups.setdefault(_name(fault), []).append(chapter)
    rows = [[name, *_row(group)] for name, group in groups.items()]
    return table(_FAULTS, [*rows, ["all", *_row(chapters)]])


def table_of_held(chapters: Sequence[Chapter]) -> str:
    """Return a row for each process that lived through it all."""
    rows: list[list[str]] = []
    for role, series in per_process([chapter.held for chapter in chapters]):
        if len(series) == len(chapters):
            early, late = resident(series)
            threads = _span(one.threads for one in series)
            files = _span(one.files for one in series)
            size = f"{early:.0f}, {late:.0f}"
            rows.append([_NAMES.get(role, role), str(len(series)), threads, files, size])
    return table(_HELD, rows)


def told_of_clients(chapters: Sequence[Chapter]) -> str:
    """Return a sentence with what the status page and the clients say of what is held."""
    handles = _span(chapter.handles for chapter in chapters)
    arrays = _span(chapter.arrays for chapter in chapters)
    sessions = _span(chapter.sessions for chapter in chapters)
    ended = sum(chapter.ended for chapter in chapters)
    return (
        f"Once quiet: {sessions} sessions with {handles} handles, and {arrays} arrays in their "
        f"clients. Clients that jaxlib ended when they lost their connection: {ended}."
    )


def complaints(chapters: Sequence[Chapter]) -> Iterator[str]:
    """Yield what was not as it should be."""
    for number, chapter in enumerate(chapters, 1):
        for text in (*chapter.verdict.complaints, *_left_behind(chapter)):
            yield f"fault {number} ({_name(chapter.blow.fault)}): {text}"
    for role, series in per_process([chapter.held for chapter in chapters]):
        yield from grown(role, series)


MOST_HANDLES = 40  # of two clients that hold a program or two for each island


def _left_behind(chapter: Chapter) -> Iterator[str]:
    if chapter.sessions != 2:
        yield f"two clients are there, and the status page tells of {chapter.sessions}"
    if chapter.buffer_bytes:
        yield f"{chapter.buffer_bytes} bytes of host buffers are left"
    if chapter.handles > MOST_HANDLES:
        yield f"two quiet clients hold {chapter.handles} handles"
    if chapter.arrays:
        yield f"two quiet clients hold {chapter.arrays} arrays"


def _name(fault: Fault) -> str:
    what = "kill -9" if fault.how == "kill" else "stop"
    who = _NAMES.get(fault.role, fault.role)
    if (fault.role, fault.how) == ("worker", "stop"):
        within = {"no": "within", "maybe": "about", "yes": "beyond"}[fault.loses]
        return f"{who}, stop {within} its lease"
    if (fault.role, fault.how) == ("client", "stop"):
        return f"{who}, stop {'beyond' if fault.loses != 'no' else 'within'} 4.5 s"
    return f"{who}, {what}"


def _row(chapters: Sequence[Chapter]) -> list[str]:
    verdicts = [chapter.verdict for chapter in chapters]
    errors: Counter[str] = Counter()
    for verdict in verdicts:
        errors.update(verdict.errors)

    def total(of: Callable[[Chapter], int]) -> int:
        return sum(map(of, chapters))

    back_s = [chapter.blow.back_s for chapter in chapters]
    return [
        f"{len(chapters)} ({total(lambda each: each.blow.in_flight)})",
        f"{max(verdict.longest_s for verdict in verdicts):.1f}",
        f"{statistics.median(back_s):.1f}, {max(back_s):.1f}",
        str(total(lambda each: each.verdict.right)),
        str(total(lambda each: each.verdict.wrong)),
        ", ".join(f"{count} {code}" for code, count in errors.most_common()) or "none",
        ", ".join(
            str(total(of))
            for of in (
                lambda each: each.verdict.old_kept,
                lambda each: each.verdict.old_lost,
                lambda each: each.verdict.old_read,
            )
        ),
    ]


def _span(numbers: Iterable[int]) -> str:
    low, high = min(found := list(numbers)), max(found)
    return str(low) if low == high else f"{low} to {high}"
