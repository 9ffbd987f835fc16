"""Hashes of n-grams are those that transformers derives; sizes without sense are refused."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.checkpoints.ngram_hashes import ngram_hashes
from sax.errors import CheckpointError
from tests.each_case import each_case

# Of transformers 5.24, with the sizes that it takes where config.json says none.
MULTIPLIERS = [
    (23703573157769, 20109073645365, 8052911324071),
    (3352040966061, 19752442147475, 10742103100073),
]
USUAL = {"vocab_size": 248320}


def test_the_usual_hashes_are_those_of_transformers() -> None:
    first, second = ngram_hashes(USUAL, 2)
    assert [first.multipliers, second.multipliers] == MULTIPLIERS
    assert (first.sizes[0], first.sizes[1], first.sizes[15]) == (20000003, 20000023, 20000171)
    assert (second.sizes[0], second.sizes[15]) == (20000213, 20000429)
    assert first.offsets[:2] == (0, 20000003)
    assert first.rows % 128 == 0
    assert 0 <= first.rows - sum(first.sizes) < 128


@each_case(
    "changes, named",
    [
        ({"vocab_size": None}, "vocab_size = None"),
        ({"ngram_size": 1}, "ngram_size = 1"),
        ({"heads_per_ngram": True}, "heads_per_ngram = True"),
        ({"seed": -1}, "seed = -1"),
        ({"ngram_vocab_size_base": 2**30}, "all 1024"),
        ({"heads_per_ngram": 1024}, "all 1024"),
    ],
)
def test_sizes_that_make_no_tables_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        ngram_hashes({**USUAL, **changes}, 1)
