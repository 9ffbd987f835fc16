"""The pairs of -extra."""

from __future__ import annotations

import pytest

from sax.cli.saxutil.verb import options_of
from sax.errors import InvalidRequest


def test_numbers_are_numbers_and_the_rest_are_texts() -> None:
    options = options_of("temperature:0.2,mode:fast,id:'7',n:1e2", 60)
    told = options.ToProto()
    assert dict(told.items) == pytest.approx({"temperature": 0.2, "n": 100.0})
    assert dict(told.strings) == {"mode": "fast", "id": "7"}
    assert options.GetTimeout() == 60


def test_nothing_given_is_nothing_sent() -> None:
    assert not options_of("", 1).extra_inputs


@pytest.mark.parametrize("extra", ["temperature", "a:b:c", "a:1,,b:2"])
def test_what_is_no_pair_is_refused(extra: str) -> None:
    with pytest.raises(InvalidRequest, match="key:value"):
        options_of(extra, 1)
