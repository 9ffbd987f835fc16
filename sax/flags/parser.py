"""A parser of server flags that takes the spellings of Saxml's servers, too.

The model server's are absl's and the admin server's are Go's: `-port=1`, `--nocheck` and
`--check=false` for switches, `--flagfile` and `--undefok`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_YES, _NO = ("true", "t", "1", "yes", "y"), ("false", "f", "0", "no", "n")
_HELP = ("--helpfull", "--helpshort", "--helpxml")
_FLAG_FILE, _MAY_BE_UNKNOWN = "flagfile", "undefok"
_DEPTH = 8  # of flag files that name flag files
JAX_FLAG = "jax_flag"  # under which jax's own flags are parsed
XLA_FLAG = "xla_flag"  # likewise for options of its compiler


class ServerParser(argparse.ArgumentParser):
    """Never guesses a flag from its beginning, since a guess may become another flag's name."""

    def __init__(self, *args: Any, takes_also: str = "", **settings: Any) -> None:
        """takes_also: JAX_FLAG or XLA_FLAG, under which `--jax_NAME` or `--xla_NAME` is parsed."""
        super().__init__(
            *args,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **settings,
        )
        self._takes_also = takes_also
        self.add_argument(*_HELP, action="help", help=argparse.SUPPRESS)
        absl = self.add_argument_group("flags about flags (absl's)")
        absl.add_argument(
            f"--{_FLAG_FILE}", metavar="FILE", help="read more flags from this file, one a line"
        )
        absl.add_argument(
            f"--{_MAY_BE_UNKNOWN}",
            metavar="NAMES",
            help="comma-separated names of flags that are passed over if they are unknown here",
        )
        absl.add_argument(
            "--only_check_args",
            action=argparse.BooleanOptionalAction,
            default=False,
            help="check the flags and end with status 0",
        )

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        words = self._words(list(sys.argv[1:] if args is None else args))
        texts = _given(words, _MAY_BE_UNKNOWN)
        names = {name.strip().lstrip("-") for text in texts for name in text.split(",")}
        known = list(_without(words, names - self._kinds().keys()))
        return super().parse_known_args(list(self._respelled(known)), namespace)

    def take_own(self, values: dict[str, Any]) -> bool:
        """Remove the flags about flags; return True if the others were only to be checked."""
        del values[_FLAG_FILE], values[_MAY_BE_UNKNOWN]
        return bool(values.pop("only_check_args"))

    def _kinds(self) -> dict[str, argparse.Action]:
        """Actions by the names of their flags, without dashes."""
        return {
            name.removeprefix("--"): action
            for action in self._actions
            for name in action.option_strings
            if name.startswith("--")
        }

    def _words(self, words: list[str], depth: int = 0) -> list[str]:
        """Put in the place of a --flagfile what it holds, as absl does."""
        if depth > _DEPTH:
            self.error(f"--{_FLAG_FILE}: files name each other without end")
        made: list[str] = []
        left = iter(words)
        for word in left:
            name, equals, path = _split(word)
            if name != _FLAG_FILE:
                made.append(word)
                continue
            lines = self._lines(path if equals else next(left, ""))
            made += self._words(lines, depth + 1)
        return made

    def _lines(self, path: str) -> list[str]:
        try:
            text = Path(path).expanduser().read_text()
        except (OSError, UnicodeDecodeError) as exc:
            self.error(f"--{_FLAG_FILE} {path} cannot be read: {exc}")
        lines = (line.strip() for line in text.splitlines())
        flags = (line for line in lines if line and not line.startswith(("#", "//")))
        return [word for line in flags for word in _of_line(line)]

    def _respelled(self, words: Sequence[str]) -> Iterator[str]:
        """Yield the words as argparse takes them."""
        kinds, left = self._kinds(), list(words)
        while left:
            word = left.pop(0)
            name, equals, value = _split(word)
            if self._takes_also and _is_of(self._takes_also, name, kinds):
                if not equals and left and _is_value(left[0]):
                    equals, value = "=", left.pop(0)
                yield f"--{self._takes_also}={_named(name, value if equals else '')}"
            else:
                yield _as_argparse(word, name, equals, value, kinds)


def add_jax_flags(parser: argparse.ArgumentParser) -> None:
    """Add the destination of every `--jax_NAME=VALUE` that the parser itself does not have."""
    parser.add_argument_group("options of jax").add_argument(
        f"--{JAX_FLAG}",
        action="append",
        dest="jax_flags",
        metavar="NAME=VALUE",
        help="an option of jax; Saxml's spelling --jax_NAME=VALUE does the same",
    )


def _split(word: str) -> tuple[str, str, str]:
    """Return name, "=" and value of a flag; no name for a word that is none."""
    if not word.startswith("-") or word in ("-", "--"):
        return "", "", ""
    return word.removeprefix("-").removeprefix("-").partition("=")


def _is_switch(action: argparse.Action | None) -> bool:
    return isinstance(action, argparse.BooleanOptionalAction)


def _as_argparse(
    word: str, name: str, equals: str, value: str, kinds: Mapping[str, argparse.Action]
) -> str:
    if name in kinds:
        if not (_is_switch(kinds[name]) and equals):
            return f"--{name}{equals}{value}"
        if value.lower() in (*_YES, *_NO):
            return f"--{'' if value.lower() in _YES else 'no-'}{name}"
    off = name.removeprefix("no").removeprefix("-")
    if name.startswith("no") and not equals and _is_switch(kinds.get(off)):
        return f"--no-{off}"
    return word


def _is_of(flag: str, name: str, kinds: Mapping[str, argparse.Action]) -> bool:
    own = name in kinds or name.removeprefix("no") in kinds
    return name.removeprefix("no").startswith(flag.removesuffix("flag")) and not own


def _is_value(word: str) -> bool:
    return not word.startswith("-") or word[1:2].isdigit()  # a number may be below zero


def _named(name: str, value: str) -> str:
    """Return NAME=VALUE; a flag without a value is a switch."""
    if name.startswith("no"):
        return f"{name.removeprefix('no')}=false"
    return f"{name}={value or 'true'}"


def _of_line(line: str) -> list[str]:
    """Split a line of a flag file: a value may follow its flag behind a space."""
    if "=" in line or " " not in line:
        return [line]
    return shlex.split(line)


def _given(words: Sequence[str], flag: str) -> Iterator[str]:
    """Yield every value that a flag was given."""
    for number, word in enumerate(words):
        name, equals, value = _split(word)
        if name == flag:
            yield value if equals else "".join(words[number + 1 : number + 2])


def _without(words: Sequence[str], unknown: set[str]) -> Iterator[str]:
    """Leave out flags of these names, and a value that stands behind one."""
    skipping = False
    for word in words:
        name, equals, _ = _split(word)
        if name:
            skipping = (name in unknown or name.removeprefix("no") in unknown) and not equals
            if name in unknown or name.removeprefix("no") in unknown:
                continue
        elif skipping:
            skipping = False
            continue
        yield word
