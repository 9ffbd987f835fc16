"""Flags in the spellings of absl and of Go mean what they mean there."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from sax.flags.parser import JAX_FLAG, ServerParser, add_jax_flags
from tests.each_case import each_case


def make_parser(*, jax: bool = False) -> ServerParser:
    parser = ServerParser("server", takes_also=JAX_FLAG if jax else "")
    parser.add_argument("--port", type=int, default=1)
    parser.add_argument("--sax_cell", default="")
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--notes", default="")
    add_jax_flags(parser)
    return parser


@each_case("words", ["--port=7", "--port 7", "-port=7", "-port 7"])
def test_one_dash_or_two_and_an_equals_sign_or_none_say_the_same(words: str) -> None:
    assert make_parser().parse_args(words.split()).port == 7


@each_case(
    "word, value",
    [
        ("--check", True),
        ("-check", True),
        ("--check=true", True),
        ("-check=T", True),
        ("--check=1", True),
        ("--nocheck", False),
        ("-nocheck", False),
        ("--no-check", False),
        ("--check=false", False),
        ("-check=F", False),
        ("--check=0", False),
    ],
)
def test_a_switch_is_set_in_every_spelling(word: str, value: bool) -> None:
    assert make_parser().parse_args([word]).check is value


def test_a_name_that_begins_with_no_is_no_switch() -> None:
    assert make_parser().parse_args(["--notes=a"]).notes == "a"


def test_the_last_of_two_wins() -> None:
    """The entry points of Saxml's images put the user's flags behind their own."""
    words = ["--sax_cell=/sax/cell", "-sax_cell=/sax/test"]
    assert make_parser().parse_args(words).sax_cell == "/sax/test"


def test_a_negative_number_is_a_value() -> None:
    assert make_parser().parse_args(["--port", "-1"]).port == -1


@pytest.mark.parametrize(
    "words", [["--porr=7"], ["--por", "7"], ["--check=maybe"], ["--nosuch"], ["--jax_x=1"]]
)
def test_what_is_no_flag_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(words)
    assert ended.value.code == 2
    assert words[0].partition("=")[0] in capsys.readouterr().err


def test_unknown_flags_may_be_passed_over_by_name() -> None:
    words = ["--undefok=odd,port", "--odd=1", "--noodd", "--odd", "a", "--port=7"]
    assert make_parser().parse_args(words).port == 7


def test_flags_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("--sax_cell /sax/b\n")
    text = f"# a comment\n// another\n--port=7\n\n--flagfile={tmp_path / 'more'}\n"
    (tmp_path / "flags").write_text(text)
    found = make_parser().parse_args(["--port=1", f"-flagfile={tmp_path / 'flags'}", "--check"])
    assert (found.port, found.sax_cell, found.check) == (7, "/sax/b", True)


def test_a_flag_file_that_names_itself_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "flags").write_text(f"--flagfile={tmp_path / 'flags'}\n")
    for name, told in (("flags", "without end"), ("none", "cannot be read")):
        with pytest.raises(SystemExit):
            make_parser().parse_args([f"--flagfile={tmp_path / name}"])
        assert told in capsys.readouterr().err


@each_case(
    "words, flag",
    [
        (["--jax_enable_checks"], "jax_enable_checks=true"),
        (["--nojax_enable_checks"], "jax_enable_checks=false"),
        (["--jax_default_matmul_precision", "highest"], "jax_default_matmul_precision=highest"),
        (["-jax_log_compiles=1"], "jax_log_compiles=1"),
        (["--jax_flag=jax_log_compiles=1"], "jax_log_compiles=1"),
    ],
)
def test_every_option_of_jax_is_a_flag(words: list[str], flag: str) -> None:
    assert make_parser(jax=True).parse_args([*words, "--port=7"]).jax_flags == [flag]


@pytest.mark.parametrize("word", ["--help", "-help", "-h", "--helpfull", "-helpshort"])
def test_help_has_absls_names_too(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args([word])
    assert ended.value.code == 0
    assert "--sax_cell" in capsys.readouterr().out


def test_flags_can_be_checked_only() -> None:
    values = vars(make_parser().parse_args(["--only_check_args"]))
    assert make_parser().take_own(values)
    assert "flagfile" not in values
