"""The shell blocks of a page, taken apart into simple commands. Pure.

A block is what stands between ```sh and ```. The shell that is read is the one of our pages:
continued lines, comments, pipes, loops, redirections, here-documents and `$(...)` outside quotes.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator

_FENCE = re.compile(r"^ *```sh\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_TYPED = re.compile(r"`((?:kubectl|gcloud|sax|docker) [^`]+)`")
_HERE_DOCUMENT = re.compile(r"<<-?'?(\w+)'?([^\n]*)\n.*?^\1$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"(?<!\S)#.*$", re.MULTILINE)
_ASSIGNMENT = re.compile(r"^\w+=")
_CONTROL, _REDIRECTION = set("();|&\n"), set("<>&")
_KEYWORDS = {"do", "then", "else", "while", "until", "if", "!", "{"}
_NO_COMMAND = {"for", "done", "fi", "}"}
_SET = re.compile(r"(?:^|[\s;(])(?:export\s+)?([A-Za-z_]\w*)=|\bfor (\w+) in\b", re.MULTILINE)
_READ = re.compile(r"\$\{?([A-Za-z_]\w*)")
_MADE = re.compile(r"(?:>|mkdir -p) *([\w./-]+)")


def blocks(page: str) -> list[str]:
    """The text of every shell block, in order, without its indentation."""
    return [textwrap.dedent(found[1]) for found in _FENCE.finditer(page)]


def typed_in_prose(page: str) -> list[str]:
    """The commands between backticks in a page's sentences and tables."""
    return [" ".join(found.split()) for found in _TYPED.findall(_FENCE.sub("", page))]


def commands(block: str) -> Iterator[list[str]]:
    """Every program that a block starts, with its words.

    Raises ValueError where a quote is not closed.
    """
    command: list[str] = []
    redirected = False
    for token in [*_tokens(block), "\n"]:
        if token and set(token) <= _CONTROL:
            yield from _command(command)
            command = []
        elif token and set(token) <= _REDIRECTION:
            redirected = True
        elif redirected:
            redirected = False
        else:
            command.append(token)


def unset_variables(texts: list[str]) -> list[str]:
    """The variables that are read before one of the blocks has set them."""
    known, missing = set[str](), list[str]()
    for text in texts:
        # A value may read what the same block sets: only the order of blocks is looked at.
        known |= {name for pair in _SET.findall(text) for name in pair if name}
        missing += [name for name in _READ.findall(text) if name not in known]
    return list(dict.fromkeys(missing))


def made(texts: list[str]) -> set[str]:
    """The files and folders that blocks make."""
    return {name for text in texts for name in _MADE.findall(text)}


def _tokens(block: str) -> list[str]:
    text = _HERE_DOCUMENT.sub(r"<< \1 \2", block).replace("\\\n", " ")
    lexer = shlex.shlex(_COMMENT.sub("", text), posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    return list(lexer)


def _command(words: list[str]) -> Iterator[list[str]]:
    while words and (words[0] in _KEYWORDS or _ASSIGNMENT.match(words[0])):
        words = words[1:]
    if words and words[0] not in _NO_COMMAND:
        yield words
