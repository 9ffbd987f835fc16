"""JSON that strangers wrote costs no more than its bounds."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.checkpoints.json_file import MOST_JSON, parse_json, read_json
from sax.errors import CheckpointError
from tests.each_case import each_case

NUMBERS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.extended
@given(VALUES)
def test_what_a_checkpoint_may_hold_is_read(value: object) -> None:
    assert parse_json(json.dumps(value)) == value


@each_case(
    "text, words",
    [
        ('{"a": ' + "9" * 4000 + "}", "a number of 4000 digits"),
        ('{"a": -' + "9" * 41 + "}", "a number of 42 digits"),
        ("[" * 100_000, "recursion"),
        ("[" + "{}," * 1_000_000 + "{}]", "values"),
        ("[" + "1," * 2_000_001 + "1]", "values"),
        (" " * (MOST_JSON + 1), "characters"),
    ],
)
def test_what_would_cost_too_much_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=f"config.json is not JSON.*{words}"):
        read_json(tmp_path / "config.json")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.touch()
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # without a byte on the disk
    with pytest.raises(CheckpointError, match=r"config\.json has \d+ bytes; at most"):
        read_json(path)
