"""CallForm: how a model writes calls of tools, as one value.

A model server learns it from the chat template and makes the grammar of forced calls from it; a
gateway reads answers by it. It crosses the wire as JSON, beside the name of an older parser.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import cached_property

import msgspec

# Places in the texts of a form. Unicode's noncharacters: no template writes them.
NAME, ID, INDEX = "\ufdd1", "\ufdd2", "\ufdd3"

FUNCTIONS_ID = f"functions.{NAME}:{INDEX}"  # Kimi: the id of a call has its name in it


class Arguments(StrEnum):
    """How the arguments of a call are written."""

    OBJECT = "object"  # the call is a JSON object that has its name and its arguments
    JSON = "json"  # a JSON object behind the name
    PAIRS = "pairs"  # each key and value between marks; texts stand as they are
    PYTHON = "python"  # name(key=value)
    LOOSE = "loose"  # {key:value}, with texts between quotes that are tokens
    TAGS = "tags"  # each key around its value; objects and lists are tags within it


class IdForm(StrEnum):
    """Ids that a model's template takes."""

    ANY = ""
    SHORT = "short"  # Mistral: nine letters and digits
    FUNCTIONS = "functions"  # Kimi: functions.name:0


class CallForm(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """Texts around calls: `begin`, then `head`, arguments and `tail` of each call with `between`
    between two, then `end`. NAME, ID and INDEX stand in `head` where the call has them."""

    arguments: str = Arguments.OBJECT
    mark: str = ""  # how calls begin, anywhere in an answer; "": they are its beginning
    begin: str = ""
    head: str = ""
    tail: str = ""
    between: str = ""
    end: str = ""
    ids: str = IdForm.ANY
    first_index: int = 0
    one: bool = False  # a turn has one call
    # Of an object: the keys of its name and its arguments.
    name_key: str = "name"
    arguments_key: str = "arguments"
    # Of pairs and tags: before a key; behind it, by JSON's type of the value or "" for any; behind
    # the value; between two pairs.
    pair: str = ""
    colon: dict[str, str] = {}
    close: str = ""
    comma: str = ""
    cdata: bool = False  # texts with marks stand in a CDATA section
    quoted: bool = False  # texts are JSON, too
    python_words: bool = False  # True, False and None, and lists as Python writes them
    quote: str = ""  # of loose arguments: around a text
    item: str = ""  # of tags: the key of each value of a list

    @cached_property
    def opening(self) -> str:
        """What the first call begins with, up to its arguments."""
        return (self.begin + self.head).lstrip()

    def behind_key(self, kind: str) -> str:
        """Return what stands between a key and its value of this JSON type."""
        return self.colon.get(kind, self.colon.get("", ""))

    @cached_property
    def tokens(self) -> frozenset[str]:
        """Texts in the form that may be control tokens."""
        texts = (self.mark, self.begin, self.head, self.tail, self.between, self.end)
        pairs = (self.pair, *self.colon.values(), self.close, self.comma, self.quote)
        found = {token for text in (*texts, *pairs) for token in _TOKEN.findall(text)}
        return frozenset(found | {self.quote, self.mark} - {""})


_TOKEN = re.compile(r"\]<\]\w+\[>\[|<[^<>\s]*>|\[[^\[\]\s]+\]")  # MiniMax' ]<]minimax[>[ first
_BAR, _GAP = "\uff5c", "\u2581"


def _deepseek(words: str) -> str:
    return f"<{_BAR}{words.replace(' ', _GAP)}{_BAR}>"


HERMES = CallForm(
    mark="<tool_call>",
    head=f'<tool_call>\n{{"name": "{NAME}", "arguments": ',
    tail="}\n</tool_call>",
    between="\n",
)
LLAMA3 = CallForm(
    head=f'{{"name": "{NAME}", "parameters": ',
    tail="}",
    between="; ",
    arguments_key="parameters",
)
MISTRAL_LIST = CallForm(
    mark="[TOOL_CALLS]",
    begin="[TOOL_CALLS][",
    head=f'{{"name": "{NAME}", "arguments": ',
    tail="}",
    between=", ",
    end="]",
    ids=IdForm.SHORT,
)
MISTRAL = CallForm(
    Arguments.JSON, mark="[TOOL_CALLS]", head=f"[TOOL_CALLS]{NAME}[ARGS]", ids=IdForm.SHORT
)
_MISTRAL_ID = CallForm(
    Arguments.JSON,
    mark="[TOOL_CALLS]",
    head=f"[TOOL_CALLS]{NAME}[CALL_ID]{ID}[ARGS]",
    ids=IdForm.SHORT,
)
_MISTRAL_ONE = CallForm(
    mark="[TOOL_CALLS]", head=f'[TOOL_CALLS]{{"name": "{NAME}", "arguments": ', tail="}"
)
_MISTRAL_BARE = CallForm(Arguments.JSON, mark="[TOOL_CALLS]", head=f"[TOOL_CALLS]{NAME}")
GEMMA = CallForm(Arguments.PYTHON, begin="[", head=f"{NAME}(", tail=")", between=", ", end="]")
DEEPSEEK_FENCED = CallForm(
    Arguments.JSON,
    mark=_deepseek("tool calls begin"),
    begin=_deepseek("tool calls begin"),
    head=f"{_deepseek('tool call begin')}function{_deepseek('tool sep')}{NAME}\n```json\n",
    tail=f"\n```{_deepseek('tool call end')}",
    between="\n",
    end=_deepseek("tool calls end"),
)
DEEPSEEK = CallForm(
    Arguments.JSON,
    mark=_deepseek("tool calls begin"),
    begin=_deepseek("tool calls begin"),
    head=f"{_deepseek('tool call begin')}{NAME}{_deepseek('tool sep')}",
    tail=_deepseek("tool call end"),
    end=_deepseek("tool calls end"),
)
LFM2 = CallForm(
    Arguments.PYTHON,
    mark="<|tool_call_start|>",
    begin="<|tool_call_start|>[",
    head=f"{NAME}(",
    tail=")",
    between=", ",
    end="]<|tool_call_end|>",
    python_words=True,
)
JSON_LIST = CallForm(
    begin="[", head=f'{{"name": "{NAME}", "arguments": ', tail="}", between=", ", end="]"
)
COMMAND = CallForm(  # Command R7B and A
    mark="<|START_ACTION|>",
    begin="<|START_ACTION|>[",
    head=f'\n    {{"tool_call_id": "{INDEX}", "tool_name": "{NAME}", "parameters": ',
    tail="}",
    between=",",
    end="\n]<|END_ACTION|>",
    name_key="tool_name",
    arguments_key="parameters",
)
TOOL_CALL_LIST = CallForm(  # Granite 3, Phi 4
    mark="<|tool_call|>",
    begin="<|tool_call|>[",
    head=f'{{"name": "{NAME}", "arguments": ',
    tail="}",
    between=", ",
    end="]",
)

# Forms by the names that older model servers tell, the likeliest first.
NAMED_FORMS: dict[str, tuple[CallForm, ...]] = {
    "hermes": (HERMES,),
    "llama3": (LLAMA3,),
    "mistral": (MISTRAL_LIST, _MISTRAL_ONE, MISTRAL, _MISTRAL_ID, _MISTRAL_BARE),
    "gemma": (GEMMA,),
    "deepseek": (DEEPSEEK, DEEPSEEK_FENCED),
}


def encoded(form: CallForm) -> str:
    return msgspec.json.encode(form).decode()


def decoded(text: str) -> CallForm:
    """Raises msgspec.DecodeError."""
    return msgspec.json.decode(text, type=CallForm)
