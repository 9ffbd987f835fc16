"""Tests of Hypothesis that try few examples before each merge and many every night."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

Test = Callable[..., None]


def examples(*strategies: Any, few: int, many: int, **named: Any) -> Callable[[Test], Test]:
    """What `given` is to a test, whose nightly case tries `many` examples and the other `few`;
    `make test` asks for twice as many as of other tests at most."""

    def decorate(test: Test) -> Test:
        @pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.nightly)])
        @functools.wraps(test, updated=())  # explicit examples stay with the test itself
        def run(count: int) -> None:
            most = 2 * int(os.environ.get("SAX_EXAMPLES", many))
            settings(max_examples=min(count, most))(given(*strategies, **named)(test))()

        del run.__wrapped__  # whose parameters pytest would take for fixtures
        return run

    return decorate
