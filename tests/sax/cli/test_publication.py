"""Publications as they are written on a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sax.cli.publication import Publication, check_here, parse_publication
from sax.errors import InvalidName, InvalidRequest


def test_three_words_mean_one_replica() -> None:
    wanted = parse_publication(["/sax/test/m", "llama", "/c"])
    assert wanted == Publication("/sax/test/m", "llama", "/c", 1, {})


def test_replicas_and_overrides_follow() -> None:
    words = ["/sax/test/m", "llama", "None", "2", "NUM_LAYERS=2", 'NAME="x"']
    wanted = parse_publication(words)
    assert wanted.replicas == 2
    assert wanted.overrides == {"NUM_LAYERS": "2", "NAME": '"x"'}


def test_overrides_may_follow_without_a_number() -> None:
    wanted = parse_publication(["/sax/test/m", "llama", "None", "A=1"])
    assert (wanted.replicas, wanted.overrides) == (1, {"A": "1"})


@pytest.mark.parametrize("number", ["two", "-1", "1.5"])
def test_a_number_of_replicas_that_is_none_is_refused(number: str) -> None:
    with pytest.raises(InvalidRequest, match="number of replicas"):
        parse_publication(["/sax/test/m", "llama", "None", number])


def test_too_few_words_are_told_the_form() -> None:
    with pytest.raises(InvalidRequest, match="MODEL MODEL_PATH CHECKPOINT"):
        parse_publication(["/sax/test/m"])


def test_a_malformed_name_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(InvalidName):
        parse_publication(["sax/test/m", "llama", "/c"])


def test_a_checkpoint_that_exists_here_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.gguf").touch()
    monkeypatch.chdir(tmp_path)
    wanted = parse_publication(["/sax/test/m", "llama", "m.gguf"])
    assert wanted.checkpoint == str(tmp_path / "m.gguf")
    elsewhere = parse_publication(["/sax/test/m", "llama", "other.gguf"])
    assert elsewhere.checkpoint == "other.gguf"


def test_a_last_part_alone_is_a_model_of_the_cell_that_is_started() -> None:
    wanted = parse_publication(["m", "auto", "acme/tiny"], "/sax/lab")
    assert (wanted.model_id, wanted.checkpoint) == ("/sax/lab/m", "acme/tiny")
    whole = parse_publication(["/sax/test/m", "auto", "acme/tiny"], "/sax/lab")
    assert whole.model_id == "/sax/test/m"


def test_a_local_checkpoint_that_is_not_here_is_told_before_a_cell_is_started(
    tmp_path: Path,
) -> None:
    for there in (str(tmp_path), "None", "acme/tiny", "gs://bucket/x", "hf://acme/tiny"):
        check_here(there)
    with pytest.raises(InvalidRequest, match="does not exist on this machine: give the path"):
        check_here(str(tmp_path / "none.gguf"))
