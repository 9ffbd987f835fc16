"""CheckedCalls: the calls of an answer, checked by what its grammar does not hold of schemas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from model_server.grammars.compiler import AnswerVerdict
from sax.call_form import Arguments
from sax.chat import AnswerFormat
from sax.dialects.answer_parser import AnswerParser, forms_of
from sax.dialects.events import AnswerEvent, ArgumentsDelta, CallBegun, ContentDelta

_JSON = (Arguments.OBJECT, Arguments.JSON)
# Takes a schema, and what is to keep to it.
CheckJson = Callable[[str, str], Awaitable[AnswerVerdict]]


class CheckedCalls:
    def __init__(
        self, format: AnswerFormat, tools: Mapping[str, str | None], check: CheckJson, schema: str
    ) -> None:
        """tools: those that may be called, each with the schema that its arguments were promised
        to keep to; None: no promise. schema: of an answer without calls; "": none."""
        self._parser = AnswerParser(format, tools)
        self._tools = tools
        self._check = check
        self._schema = schema
        self._content: list[str] = []
        self._calls: list[tuple[str, list[str]]] = []  # name and pieces of arguments

    def push(self, text: str) -> None:
        self._take(self._parser.push(text))

    async def verdict(self) -> AnswerVerdict:
        """Return what is wrong with the first call that breaks its schema."""
        self._take(self._parser.finish())
        found = AnswerVerdict("kept")
        if not self._calls and self._schema:
            return await self._check(self._schema, "".join(self._content))
        for number, (name, pieces) in enumerate(self._calls):
            schema = self._tools.get(name)
            if schema is None:
                continue
            found = await self._check(schema, "".join(pieces) or "{}")
            if found.kind != "kept":
                return found._replace(why=f"arguments of call {number} ({name}): {found.why}")
        return found

    def _take(self, events: list[AnswerEvent]) -> None:
        for event in events:
            match event:
                case ContentDelta(text):
                    self._content.append(text)
                case CallBegun(_, _, name):
                    self._calls.append((name, []))
                case ArgumentsDelta(_, text):
                    self._calls[-1][1].append(text)
                case _:
                    pass


def writes_json(format: AnswerFormat) -> bool:
    """True if calls have their arguments as JSON, so that a grammar holds all that it can of their
    schemas; other forms hold less."""
    return all(form.arguments in _JSON for form in forms_of(format))
