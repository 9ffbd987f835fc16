"""Finds which patterns of an adapter's settings match which of its modules.

PEFT takes regular expressions there. One of a stranger can run for hours, so those that repeat
anything are matched by a process with limits:

    python -m model_server.checkpoints.huggingface.peft_patterns SECONDS NICENESS
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from model_server.sharing.confined.limits import confine, run
from model_server.sharing.confined.pipe import framed
from model_server.sharing.confined.process import ConfinedProcess, ProcessEnded, ProcessStarved
from sax.errors import CheckpointError
from sax.format import quoted

_SECONDS = 5.0  # of processor time
_MEMORY, _ADDRESSES = 512 << 20, 2 << 30
_LITERAL = re.compile(r"\^?(?:[\w-]|\\?\.)+\$?", re.ASCII)


def first_matches(patterns: Sequence[str], modules: Sequence[str]) -> dict[str, str]:
    """Return the first pattern that matches a module's name or its last parts, by module.

    Raises CheckpointError for a pattern that is no expression, or that takes too long.
    """
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as exc:
            raise CheckpointError(f"{quoted(pattern)} is no regular expression: {exc}") from exc
    if all(map(_LITERAL.fullmatch, patterns)):
        return dict(_matched(patterns, modules))
    process = ConfinedProcess(
        __name__, _SECONDS, 0, doing="matches an adapter's patterns", most=64 << 20
    )
    try:
        return process.exchange(framed(json.dumps([patterns, modules]).encode()), json.loads)
    except (ProcessEnded, ProcessStarved, OSError) as exc:
        raise CheckpointError(
            f"its expressions cannot be matched ({exc}): name the modules in full"
        ) from exc
    finally:
        process.stop()


def _matched(patterns: Iterable[str], modules: Iterable[str]) -> Iterable[tuple[str, str]]:
    compiled = {pattern: re.compile(rf"(.*\.)?({pattern})$") for pattern in patterns}
    for module in modules:
        for pattern, expression in compiled.items():
            if expression.match(module):
                yield module, pattern
                break


def _answer(frame: bytes) -> bytes:
    patterns, modules = json.loads(frame)
    return framed(json.dumps(dict(_matched(patterns, modules))).encode())


if __name__ == "__main__":
    confine(_MEMORY, _ADDRESSES)
    run(_answer)
