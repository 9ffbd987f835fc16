"""Generates docs/sampling.md from the table of sampling fields: `make docs`."""

from __future__ import annotations

from sax.fields.field import Kind, RequestField, RequestRoute
from sax.fields.sampling import SAMPLING, UNCHANGED, SamplingRow
from sax.fields.table import fields_of
from sax.proto import tokens_pb2

_HEAD = """# Sampling fields

Generated from `sax/fields/sampling.py` by `make docs`. Every field is honoured, row by row, in any
batch, or the request is refused with the field's name, the value and the range. `null` and the
default change nothing. A field has the same name in OpenAI's and vLLM's bodies (`max_tokens` of a
chat also `max_completion_tokens`), in `SamplingParams` of the SDK and, with dashes, among the
options of `sax generate` and `sax chat`.

- Order: repetition penalty, frequency and presence penalty, `logit_bias` and `min_tokens`,
  `allowed_token_ids`, `bad_words`; then temperature, and of the tokens that are left those that
  `top_k`, `top_p`, `min_p` and `typical_p` keep. Log-probabilities are of the unmodified logits.
- Penalties count the answer so far, also the part that another replica began; the repetition
  penalty counts the prompt too.
- Contradictions are refused: a `min_tokens` above `max_tokens` or above what the context has room
  for, `allowed_token_ids` of which the other fields forbid every one.
- `eos_id` of Saxml's extra inputs is `stop_sequence` and replaces the model's own end tokens.
"""


def page() -> str:
    rows = (_line(name, row) for name, row in SAMPLING.items())
    return "\n".join(
        (
            _HEAD,
            "| field | what it does | kind | range | default | over HTTP | key in `extra_inputs` | "
            "wire | on the device |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
        )
    )


def _line(name: str, row: SamplingRow) -> str:
    ours = fields_of(RequestRoute.STREAM)[name]
    cells = (
        f"`{name}`",
        row.help,
        row.kind.value,
        _range(ours),
        f"`{getattr(UNCHANGED, name)!r}`",
        _http(name, row, ours),
        "-" if row.saxml is None or row.kind in _NOT_SAXML else f"`{row.saxml or name}`",
        str(tokens_pb2.Sampling.DESCRIPTOR.fields_by_name[name].number),
        "a number per row" if row.column else "-",
    )
    return f"| {' | '.join(cells)} |"


_NOT_SAXML = (Kind.TEXTS, Kind.BIASES)


def _range(row: RequestField) -> str:
    sizes = (
        row.range,
        f"at most {row.count} entries" if row.count else "",
        f"each of at most {row.bytes} bytes" if row.bytes else "",
    )
    return ", ".join(size for size in sizes if size) or "-"


def _http(name: str, row: SamplingRow, ours: RequestField) -> str:
    if row.http is None:
        return "-"
    theirs = fields_of(RequestRoute.CHAT)[name]
    whose = "OpenAI's" if row.openai else "vLLM's"
    return whose if theirs.range == ours.range else f"{whose}, {theirs.range}"


if __name__ == "__main__":
    print(page(), end="")
