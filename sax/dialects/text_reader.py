"""TextReader: reads the text of an answer as it comes, and writes events.

A dialect is a generator that asks the reader for the next mark, literal or value. It yields where
more text is needed, so that text may be cut anywhere. Text that turns out to be no call is content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator
from functools import cache

from sax.dialects.events import (
    AnswerEvent,
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    ContentDelta,
    ReasoningDelta,
)

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')


class JsonScan:
    """Follows brackets and texts only: whoever reads the object checks the rest."""

    def __init__(self, depth: int = 0) -> None:
        """depth: brackets that are open already."""
        self.complete = False
        self._depth = depth
        self._inside = False  # a text
        self._escaped = False

    def end(self, text: str, at: int) -> int:
        """Return the place up to which the text belongs to the object."""
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_INSIDE if self._inside else _OUTSIDE).search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            self._step(found[0])
            if self.complete:
                return at
        return at

    def _step(self, character: str) -> None:
        if character == "\\":
            self._escaped = True
        elif character == '"':
            self._inside = not self._inside
        elif character in "{[":
            self._depth += 1
        else:
            self._depth -= 1
            self.complete = self._depth <= 0


Reading = Generator[None, None, None]  # yields where it needs more text
BLANKS = " \n\t\r"
LONGEST_NAME = 256  # characters


class TextReader:
    """Holds the text that was not read yet, and the events that were not taken."""

    def __init__(self, tools: Collection[str], new_id: Callable[[], str]) -> None:
        """tools: names that a call may have."""
        self.tools = tools
        self.text = ""
        self.at = 0
        self.ended = False  # no more text will come
        self.calls = 0
        self._new_id = new_id
        self._events: list[AnswerEvent] = []
        self._blank = ""  # white space that is dropped if a call follows
        self._after_call = False
        self._gap = ""  # white space between the last content and the calls behind it
        self._said = False

    def taken(self) -> list[AnswerEvent]:
        events, self._events = self._events, []
        return events

    # --- writing ---

    def say(self, text: str) -> None:
        """Write content. White space beside a call is dropped, as it belongs to the call, but for
        what divides contents before and behind calls."""
        whole = self._blank + text
        shown = whole.rstrip(BLANKS)
        self._blank = whole[len(shown) :]
        if not shown:
            return
        if self._after_call:
            behind = shown.lstrip(BLANKS)
            blank = self._gap or shown[: len(shown) - len(behind)]
            shown = (blank if self._said else "") + behind
            self._after_call = False
        self._said = True
        self._events.append(ContentDelta(shown))

    def think(self, text: str) -> None:
        if text:
            self._events.append(ReasoningDelta(text))

    def begin_call(self, name: str, id: str = "") -> None:
        if not self._after_call:
            self._gap = self._blank
        self._blank, self._after_call = "", True
        self._events.append(CallBegun(self.calls, id or self._new_id(), name))

    def add_arguments(self, text: str) -> None:
        if text:
            self._events.append(ArgumentsDelta(self.calls, text))

    def end_call(self) -> None:
        self._events.append(CallEnded(self.calls))
        self.calls += 1

    def write_call(self, name: str, arguments: str, id: str = "") -> None:
        self.begin_call(name, id)
        self.add_arguments(arguments)
        self.end_call()

    def flush(self) -> None:
        """Write the white space at the end of the text, unless it belongs to a call."""
        if self._blank and not self._after_call:
            self._events.append(ContentDelta(self._blank))
            self._blank = ""

    # --- reading ---

    def forget(self) -> None:
        """Drop the text that was read. Places in the text change."""
        self.text, self.at = self.text[self.at :], 0

    def until(
        self, marks: tuple[str, ...], write: Callable[[str], None] | None = None
    ) -> Generator[None, None, str]:
        """Write text up to the first of the marks, and return that mark; "" at the end."""
        write = write or self.say
        while True:
            place, mark = first_mark(self.text, self.at, marks)
            if mark:
                write(self.text[self.at : place])
                self.at = place + len(mark)
                self.forget()
                return mark
            held = 0 if self.ended else begun_mark(self.text, self.at, marks)
            end = len(self.text) - held
            write(self.text[self.at : end])
            self.at = end
            self.forget()
            if self.ended:
                return ""
            yield

    def blank(self) -> Reading:
        """Read white space."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in BLANKS:
                self.at += 1
            if self.at < len(self.text) or self.ended:
                return
            yield

    def literal(self, *options: str) -> Generator[None, None, str]:
        """Read the first option that stands here, and return it; "": none does. Waits while one
        before it may still come."""
        while True:
            rest = self.text[self.at :]
            for option in options:
                if self.text.startswith(option, self.at):
                    self.at += len(option)
                    return option
                if not self.ended and option.startswith(rest):
                    break
            else:
                return ""
            yield

    def spaced(self, text: str) -> Generator[None, None, bool]:
        """Read a text, with more or less white space. False: it does not stand here, and nothing
        was read."""
        start = self.at
        for piece in text.split():
            yield from self.blank()
            if not (yield from self.literal(piece)):
                self.at = start
                return False
        return True

    def name(self) -> Generator[None, None, str]:
        """Read the longest name of a tool that stands here, and return it; "": none does."""
        while True:
            rest = self.text[self.at : self.at + LONGEST_NAME]
            longer = (name for name in self.tools if len(name) > len(rest))
            if self.ended or not any(name.startswith(rest) for name in longer):
                found = max(filter(rest.startswith, self.tools), key=len, default="")
                self.at += len(found)
                return found
            yield

    def matched(
        self, pattern: re.Pattern[str], most: int
    ) -> Generator[None, None, re.Match[str] | None]:
        """Return the match of a pattern here once another character follows it; None: there is
        none in so many characters. Reads nothing."""
        while True:
            found = pattern.match(self.text, self.at)
            if found and (found.end() < len(self.text) or self.ended):
                return found if found.end() - self.at <= most else None
            if self.ended or (not found and self.at < len(self.text)):
                return None
            if len(self.text) - self.at > most:
                return None
            yield

    def next_is(self, characters: str) -> Generator[None, None, bool]:
        """True if one of the characters comes next."""
        while self.at >= len(self.text) and not self.ended:
            yield
        return self.at < len(self.text) and self.text[self.at] in characters

    def arguments(self) -> Reading:
        """Read the JSON object that stands here, as the arguments of the call that was begun."""
        scan = JsonScan()
        while True:
            end = scan.end(self.text, self.at)
            self.add_arguments(self.text[self.at : end])
            self.at = end
            self.forget()
            if scan.complete or self.ended:
                return
            yield

    def whole_object(self) -> Generator[None, None, str]:
        """Read the JSON object that stands here, and return it, complete or not."""
        scan, start, place = JsonScan(), self.at, self.at
        while True:
            place = scan.end(self.text, place)
            if scan.complete or self.ended:
                self.at = place
                return self.text[start:place]
            yield


@cache
def _patterns(marks: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str], int]:
    """Return patterns of the marks and of how they begin, and the longest one's length."""
    longest_first = sorted(marks, key=len, reverse=True)
    firsts = "".join(sorted({re.escape(mark[0]) for mark in marks}))
    return (
        re.compile("|".join(map(re.escape, longest_first))),
        re.compile(f"[{firsts}]"),
        len(longest_first[0]),
    )


def first_mark(text: str, at: int, marks: tuple[str, ...]) -> tuple[int, str]:
    """Return the place of the first mark, the longest there, and the mark; "" for none."""
    found = _patterns(marks)[0].search(text, at) if marks else None
    return (found.start(), found[0]) if found else (-1, "")


def begun_mark(text: str, at: int, marks: tuple[str, ...]) -> int:
    """Return how many characters at the end may be the beginning of a mark."""
    if not marks:
        return 0
    _, first, longest = _patterns(marks)
    for begun in first.finditer(text, max(at, len(text) - longest + 1)):
        rest = text[begun.start() :]
        if any(mark.startswith(rest) for mark in marks):
            return len(rest)
    return 0
