"""Whom a model server obeys: the admin server of the latest term.

A term is the number of the record with which a leader took the lead of its cell.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sax.errors import InvalidRequest, NotLeading

_log = logging.getLogger(__name__)
_FORGET_S = 30.0  # a live leader polls the status every second
_LARGEST = 10**12 - 1  # records have numbers of twelve digits


class Fencing:
    """Tracks the latest term seen."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._latest = 0
        self._heard_s = 0.0
        self._wary_until_s = float("-inf")  # after a dispute a later term needs a look into the log

    def check(self, term: int) -> None:
        """Raise NotLeading for an older term; 0 is an admin without terms (Saxml's).

        Its `param` is the term that is obeyed. Raises InvalidRequest for an impossible one.
        """
        if not term:
            return
        _check_possible(term)
        now = self._clock()
        alive = now - self._heard_s < _FORGET_S
        if term < self._latest and alive:
            raise NotLeading(
                f"this model server obeys the admin server of term {self._latest}, which took the "
                f"lead after the one of term {term}: that one must step down",
                param=str(self._latest),
            )
        if term > self._latest and alive and now < self._wary_until_s:
            raise NotLeading(
                f"this model server obeys the admin server of term {self._latest}, which has just "
                f"disputed a later one: the one of term {term} must find in the log of its cell "
                f"that it leads, and dispute term {self._latest}",
                param=str(self._latest),
            )
        self._latest, self._heard_s = term, now

    def dispute(self, term: int, disputed: int) -> None:
        """Obey this term instead of the disputed one, which the log does not bear out.

        Raises NotLeading if another one is obeyed by now, InvalidRequest for an impossible term.
        """
        _check_possible(term)
        if term <= 0:
            raise InvalidRequest(f"a leader's term is at least 1, not {term}", param="term")
        if disputed != self._latest:
            self.check(term)
            return
        _log.warning(
            "term %d was disputed: the admin server of term %d leads, by the log of its cell",
            disputed,
            term,
        )
        now = self._clock()
        self._latest, self._heard_s, self._wary_until_s = term, now, now + _FORGET_S


def _check_possible(term: int) -> None:
    if term > _LARGEST:
        raise InvalidRequest(
            f"term {term} cannot be: it is the number of a record, at most {_LARGEST}",
            param="term",
        )
