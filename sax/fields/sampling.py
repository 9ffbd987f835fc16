"""The table of sampling fields: SamplingParams, each field with its row.

Everything else that names a sampling field derives from here: the bounds of every route, the HTTP
schemas, the wire codec, Saxml's extra inputs, the options of the command line, the numbers that a
step carries to the device, and docs/reference/sampling.md. A new field of one number takes a row
here, a field of the same name in `sax/proto/tokens.proto` and in the engine's `Sampling`, and its
effect in `model_server/engine/sampling.py`: four files. The native choice of CPUs takes only fields
that it has arguments for; with others XLA chooses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from sax.fields.field import Kind

Value = TypeVar("Value")

INT32, UINT64 = 2**31 - 1, 2**64 - 1
MOST_PRIORITY = 1000  # and the least is its negative
MOST_LOGPROBS = 20  # OpenAI's limit
MOST_BEAMS = 16  # with the end tokens, what a step reports beside a token: MOST_LOGPROBS
SCHEMA_BYTES = 64 << 10  # of a schema or a grammar


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRow:
    """One row of the table. Bounds as in RequestField."""

    help: str
    kind: Kind
    least: float | None = None
    above: float | None = None
    most: float | None = None
    count: int | None = None
    bytes: int | None = None
    # Bounds that differ in OpenAI's and vLLM's dialect; None: no field of their bodies.
    http: Mapping[str, float] | None = dataclasses.field(default_factory=dict[str, float])
    from_http: Callable[[Any], Any] | None = None  # a value of that dialect to ours
    openai: bool = False  # OpenAI's own; otherwise vLLM's
    saxml: str | None = ""  # the key in extra_inputs; "": this name; None: none
    cli: bool = True
    column: str = ""  # `struct` code of its number on the device; "": none
    off: float = 0  # the number that changes nothing on the device

    @property
    def bounds(self) -> dict[str, Any]:
        """Bounds of our own routes, by RequestField's names."""
        names = ("least", "above", "most", "count", "bytes")
        return {name: getattr(self, name) for name in names}

    @property
    def http_bounds(self) -> dict[str, Any]:
        """Bounds of OpenAI's and vLLM's dialect."""
        return {**self.bounds, **(self.http or {})}


def _field(default: Value, row: SamplingRow) -> Value:
    """Declare a field of SamplingParams with its row."""
    metadata = {"row": row}
    if isinstance(default, dict):
        made = dataclasses.field(default_factory=dict[Any, Any], metadata=metadata)
    else:
        made = dataclasses.field(default=default, metadata=metadata)
    return cast("Value", made)


def _not_below_zero(value: int) -> int:
    return max(0, value)


def _as_u64(value: int) -> int:
    return value % (UINT64 + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters. Every field is honoured or the request is refused."""

    temperature: float = _field(
        1.0,
        SamplingRow(
            help="Randomness: 0 always takes the likeliest token.",
            kind=Kind.NUMBER,
            least=0,
            http={"most": 2},
            openai=True,
            column="f",
        ),
    )
    top_k: int = _field(
        0,
        SamplingRow(
            help="Sample from the k likeliest tokens; 0: all.",
            kind=Kind.INTEGER,
            least=0,
            most=INT32,
            http={"least": -1},
            from_http=_not_below_zero,
            saxml="per_example_top_k",
            column="i",
        ),
    )
    top_p: float = _field(
        1.0,
        SamplingRow(
            help="Sample from the likeliest tokens of this total probability; 1: all, 0: the "
            "likeliest, as temperature 0 does.",
            kind=Kind.NUMBER,
            least=0,
            most=1,
            openai=True,
            saxml="per_example_top_p",
            column="f",
            off=1,
        ),
    )
    min_p: float = _field(
        0.0,
        SamplingRow(
            help="Sample from tokens at least this often as likely as the likeliest; 0: all.",
            kind=Kind.NUMBER,
            least=0,
            most=1,
            column="f",
        ),
    )
    typical_p: float = _field(
        1.0,
        SamplingRow(
            help="Sample from the tokens of this total probability whose surprise is nearest to "
            "the expected one; 1: all.",
            kind=Kind.NUMBER,
            above=0,
            most=1,
            column="f",
            off=1,
        ),
    )
    presence_penalty: float = _field(
        0.0,
        SamplingRow(
            help="Subtracted from the logit of every token that the answer holds.",
            kind=Kind.NUMBER,
            least=-2,
            most=2,
            openai=True,
            column="f",
        ),
    )
    frequency_penalty: float = _field(
        0.0,
        SamplingRow(
            help="Subtracted from a token's logit for each time that the answer holds it.",
            kind=Kind.NUMBER,
            least=-2,
            most=2,
            openai=True,
            column="f",
        ),
    )
    repetition_penalty: float = _field(
        1.0,
        SamplingRow(
            help="Divides positive logits, and multiplies negative ones, of the tokens in prompt "
            "and answer; 1: off.",
            kind=Kind.NUMBER,
            least=0.01,
            most=100,
            column="f",
            off=1,
        ),
    )
    logit_bias: Mapping[int, float] = _field(
        {},
        SamplingRow(
            help="Numbers added to the logits of tokens, by token id.",
            kind=Kind.BIASES,
            least=-100,
            most=100,
            count=300,
            openai=True,
            saxml=None,
        ),
    )
    allowed_token_ids: tuple[int, ...] = _field(
        (),
        SamplingRow(
            help="The only tokens that the answer may hold; none given: all.",
            kind=Kind.IDS,
            least=0,
            most=INT32,
            count=16_384,
        ),
    )
    bad_words: tuple[str, ...] = _field(
        (),
        SamplingRow(
            help="Texts that the answer must not hold as these tokens, each with and without a "
            "space before it.",
            kind=Kind.TEXTS,
            count=64,
            bytes=256,
            saxml=None,
        ),
    )
    seed: int | None = _field(
        cast("int | None", None),
        SamplingRow(
            help="The same seed gives the same text; none given: the server draws one.",
            kind=Kind.INTEGER,
            least=0,
            most=UINT64,
            http={"least": -(2**63)},
            from_http=_as_u64,
            openai=True,
        ),
    )
    max_tokens: int | None = _field(
        cast("int | None", None),
        SamplingRow(
            help="Maximum tokens of the answer; none given: to the end of the context; 0, with "
            "echo or prompt_logprobs: only score the prompt.",
            kind=Kind.INTEGER,
            least=0,
            most=INT32,
            openai=True,
            saxml="per_example_max_decode_steps",
        ),
    )
    min_tokens: int = _field(
        0,
        SamplingRow(
            help="Tokens of the answer before it may end by itself, by a stop token or by a stop "
            "text.",
            kind=Kind.INTEGER,
            least=0,
            most=INT32,
        ),
    )
    max_thinking_tokens: int | None = _field(
        cast("int | None", None),
        SamplingRow(
            help="Maximum tokens of the model's reasoning, which then ends and the answer goes on; "
            "0: it does not reason; none given: as many as it likes.",
            kind=Kind.INTEGER,
            least=0,
            most=INT32,
        ),
    )
    beam_size: int = _field(
        0,
        SamplingRow(
            help="Search for the likeliest answers with this many hypotheses, and return as many; "
            "0: sample one.",
            kind=Kind.INTEGER,
            least=0,
            most=MOST_BEAMS,
            http=None,  # use_beam_search, with n
        ),
    )
    length_penalty: float = _field(
        1.0,
        SamplingRow(
            help="Beam search: scores are log-probabilities divided by ((tokens + 5) / 5) to "
            "this power; above 0 favours long answers.",
            kind=Kind.NUMBER,
            least=-10,
            most=10,
        ),
    )
    early_stopping: bool = _field(
        False,
        SamplingRow(
            help="Beam search: end as soon as all hypotheses hold an end token.",
            kind=Kind.FLAG,
        ),
    )
    tokens_per_beam: int = _field(
        0,
        SamplingRow(
            help="Beam search: tokens that each hypothesis offers for the next hypotheses; 0: as "
            "many as there are hypotheses.",
            kind=Kind.INTEGER,
            least=0,
            most=MOST_LOGPROBS,
            http=None,
        ),
    )
    json_schema: str = _field(
        "",
        SamplingRow(
            help="The answer is JSON that is valid under this JSON Schema.",
            kind=Kind.TEXT,
            bytes=SCHEMA_BYTES,
            http=None,  # response_format, structured_outputs and guided_json
        ),
    )
    json_object: bool = _field(
        False,
        SamplingRow(help="The answer is a JSON object.", kind=Kind.FLAG, http=None),
    )
    regex: str = _field(
        "",
        SamplingRow(
            help="The whole answer matches this regular expression.",
            kind=Kind.TEXT,
            bytes=4096,
            http=None,
        ),
    )
    choice: tuple[str, ...] = _field(
        (),
        SamplingRow(
            help="The answer is one of these texts.",
            kind=Kind.TEXTS,
            count=1024,
            bytes=1024,
            http=None,
            saxml=None,
        ),
    )
    grammar: str = _field(
        "",
        SamplingRow(
            help="The answer keeps to this grammar, in Lark or GBNF.",
            kind=Kind.TEXT,
            bytes=SCHEMA_BYTES,
            http=None,
        ),
    )
    structural_tag: str = _field(
        "",
        SamplingRow(
            help="JSON: what is inside a tag keeps to a schema or another format.",
            kind=Kind.TEXT,
            bytes=SCHEMA_BYTES,
            http=None,
        ),
    )
    stop: tuple[str, ...] = _field(
        (),
        SamplingRow(
            help="Texts before which the answer ends.",
            kind=Kind.TEXTS,
            count=16,
            bytes=1024,
            openai=True,
            saxml=None,
        ),
    )
    stop_token_ids: tuple[int, ...] = _field(
        (),
        SamplingRow(
            help="Tokens at which the answer ends, beside the model's own.",
            kind=Kind.IDS,
            least=0,
            most=INT32,
            count=128,
        ),
    )
    stop_sequence: tuple[int, ...] = _field(
        (),
        SamplingRow(
            help="An answer that ends with these tokens ends there and keeps them; 0 stands for "
            "any token.",
            kind=Kind.IDS,
            least=0,
            most=INT32,
            count=64,
            http=None,
            saxml=None,  # eos_id, which sets two more fields
            cli=False,
        ),
    )
    ignore_eos: bool = _field(
        False,
        SamplingRow(help="Go on after the model's own end tokens.", kind=Kind.FLAG),
    )
    logprobs: int | None = _field(
        cast("int | None", None),
        SamplingRow(
            help="Return the log-probabilities of the chosen token and of this many likeliest.",
            kind=Kind.INTEGER,
            least=0,
            most=MOST_LOGPROBS,
            http=None,  # chats and completions spell it differently
            saxml=None,
            cli=False,
        ),
    )


SAMPLING: Mapping[str, SamplingRow] = {
    each.name: each.metadata["row"] for each in dataclasses.fields(SamplingParams)
}
UNCHANGED = SamplingParams()  # every field at the value that changes nothing
# Those that are one number of each row of a step, of the same name.
DEVICE_FIELDS = {name: row for name, row in SAMPLING.items() if row.column}
