"""Reads constraints in processes of their own, so that none can hold up or end the server."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from functools import cache

import msgspec

from model_server.grammars.constraint import Constraint
from model_server.grammars.reading.frames import MAX_ANSWER, ConstraintAnswer, ConstraintAsk
from model_server.sharing.confined.lanes import LaneKind, Lanes
from model_server.sharing.confined.pipe import framed
from model_server.sharing.confined.process import ConfinedProcess
from sax.errors import InvalidRequest, Unavailable

QUICK_S = 0.25  # processor time of a constraint in the quick lane: usual ones take milliseconds
SLOW_S = 5.0  # and in the slow one
_WAIT_S = 5.0
_WORKER = "model_server.grammars.reading.worker"
_DECODER = msgspec.msgpack.Decoder(ConstraintAnswer)


class _ConstraintProcess(ConfinedProcess):
    def __init__(self, seconds: float, niceness: int) -> None:
        super().__init__(
            _WORKER, seconds, niceness, doing="compiles it", most=MAX_ANSWER, wall_s=4 * SLOW_S
        )

    def answer(self, ask: ConstraintAsk) -> ConstraintAnswer:
        """Raises ProcessEnded, OSError, InvalidRequest for text with lone surrogates."""
        try:
            message = framed(msgspec.msgpack.encode(ask))
        except UnicodeEncodeError as exc:
            raise InvalidRequest(
                f"{ask.field} is not Unicode text: {exc}", param=ask.field
            ) from exc
        return self.exchange(message, _DECODER.decode)


class ConstraintReader:
    """Thread-safe. Its processes start with the first constraint and end with this one."""

    def __init__(self) -> None:
        self._lanes = Lanes(
            LaneKind[ConstraintAsk, ConstraintAnswer](
                name="grammars",
                doing="to compile",
                process=_ConstraintProcess,
                quick_s=QUICK_S,
                slow_s=SLOW_S,
                niceness=5,
                wait_s=_WAIT_S,
                refused=_refused,
                ended=lambda how: ConstraintAnswer("ended", how),
                spent=lambda answer: answer.kind == "ended",
            )
        )

    async def read(self, constraint: Constraint, specials: Mapping[str, int]) -> str:
        """Return the grammar in llguidance's own form, which was compiled once within limits.

        specials: control tokens by their text. Raises InvalidRequest, Unavailable.
        """
        field = constraint.field
        ask = ConstraintAsk(field, constraint.value, dict(specials))
        key = hashlib.sha256(repr(constraint).encode(errors="replace")).digest()
        answer = await asyncio.wrap_future(self._lanes.submit(key, ask))
        if answer.kind == "refused":
            raise InvalidRequest(answer.text, param=field)
        if answer.kind == "ended":
            raise InvalidRequest(f"{field} {answer.text}: simplify it", param=field)
        return answer.text

    def warm(self, specials: Mapping[str, int]) -> None:
        """Have the quick process know a model's control tokens before its first constraint."""
        self._lanes.submit(b"", ConstraintAsk("json_object", value=True, specials=dict(specials)))


def _refused(why: str, retry_after_s: float) -> Unavailable:
    # Not QueueFull: the caller would send it to another replica, with the same grammar.
    return Unavailable(why, retry_after_s=retry_after_s)


@cache
def constraint_reader() -> ConstraintReader:
    """Return the reader of this process."""
    return ConstraintReader()
