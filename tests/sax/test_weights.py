"""Runs of tokens by the version of their weights, and replicas that differ."""

import pytest

from sax.errors import Unavailable
from sax.weights import ReplicaWeights, WeightRun, add_run, check_alike, runs_of


def test_tokens_of_one_version_are_one_run_and_no_more_than_the_answer_has() -> None:
    runs = [WeightRun("", 3)]  # of an answer that another replica began
    for version in ("1", "1", "2", "2", "1"):
        add_run(runs, version)
    assert runs == [("", 3), ("1", 2), ("2", 2), ("1", 1)]
    cases = {
        8: (("", 3), ("1", 2), ("2", 2), ("1", 1)),
        6: (("", 3), ("1", 2), ("2", 1)),  # what a stop string took back
        9: (("", 3), ("1", 2), ("2", 2), ("1", 2)),
        0: (),
    }
    assert {tokens: runs_of(runs, tokens) for tokens in cases} == cases
    assert runs_of([], 2) == ()


def test_replicas_that_did_not_follow_are_named() -> None:
    done = ReplicaWeights("10.0.0.1:1", "7", "serving")
    check_alike("/sax/test/m", [done])
    with pytest.raises(Unavailable, match=r"10\.0\.0\.1:1 \(7\) followed.*10\.0\.0\.2:1: torn"):
        check_alike("/sax/test/m", [done, ReplicaWeights("10.0.0.2:1", "", "", "torn")])
