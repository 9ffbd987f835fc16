"""Generates docs/reference/sampling.md from the table of sampling fields: `make docs`."""

from __future__ import annotations

from sax.chat import THINKING_TOKENS
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
- Penalties count the answer so far, including a part that another replica generated; the repetition
  penalty counts the prompt too.
- Contradictions are refused: a `min_tokens` above `max_tokens` or above the room in the context,
  `allowed_token_ids` that the other fields forbid entirely.
- `json_schema`, `json_object`, `regex`, `choice`, `grammar` and `structural_tag` constrain
  the answer; at most one of them, and not together with `ignore_eos` or `min_tokens`. Over HTTP
  they are `response_format`, `structured_outputs` and `guided_*`.
- Such an answer is complete even at `max_tokens` (or at the end of the context), if a completion of
  that length is found. The server looks for a short way to the end at the start, every 16 tokens,
  and after each token within the last 64, or within twice the longest way that it has seen. If no
  way that fits is found after a token, another token is chosen. A search may take 0.1 s of
  computing, and all searches of one answer 2 s; after that the answer goes on and may be cut
  (`sax_answers_unclosed_total`). So may one that opens, before the last 64 tokens, more than the
  rest can close, and one with `bad_words`, which can block every way.
- Where only one token is possible, several times in a row, these tokens are computed in one step,
  if the times measured at load say that this is faster; not with penalties, `bad_words` or
  `allowed_token_ids`. JSON has longer such runs without white space: `"x-guidance":
  {"whitespace_flexible": false}` in the schema, or `disable_any_whitespace` in
  `structured_outputs`.
- A schema that no finite JSON can satisfy, because it requires itself, is refused. A grammar that
  is so ambiguous that a step costs too much is refused at that step; its row is left out of steps
  that it would delay (`sax_masks_late_total`).
- Constraints are first read and compiled in a separate process, with limits of time (5 s), memory
  and stack: one that exceeds them, such as a chain of 2,500 rules, is refused without affecting
  other requests.
- A `format` that the compiler does not know is an annotation, as JSON Schema says. Bounds of
  numbers beyond 1e18 (whole numbers: 2^63) become these values. Texts have no `\\u` escapes,
  except where the schema names control characters: a property could evade its type by another
  spelling.
- What no grammar can hold of a schema is left out of it, and the finished answer is checked:
  `uniqueItems`, `contains`, `not` (but of whole types), `if`, `dependentRequired`,
  `dependentSchemas`, `unevaluatedProperties` beside parts that evaluate, `oneOf` of which several
  may hold, patterns that look around or refer back, numbers of properties where some of them are
  optional. An answer that breaks its schema is told all the same, and how, in one line of the
  field `schema_violation` ([replies](replies.md)); so is one that could not be checked within the
  limits.
  `sax_answers_checked_total` counts both. Arguments of calls are checked likewise where they were
  to keep to the schema of their tool (`strict`, or a call that `tool_choice` forces), the first one
  that does not is told; in forms that write texts between marks (Qwen3-Coder, GLM, MiniMax and
  others) a grammar holds less of a schema, and so the check is always made. Not checked: structural
  tags, and answers that `max_tokens` cut.
- `max_thinking_tokens` (vLLM's `thinking_token_budget` is the same) bounds the tokens between the
  marks of reasoning, of models that reason; others it does not change. Once they are used up the
  closing mark comes, as the model's template writes it, and the answer goes on: alone, in any
  batch, under a grammar, and where another replica goes on. A model that begins to reason again
  gets at least 32 tokens. Under a grammar the mark comes as soon as the grammar allows it. Not
  with a beam search.
- A `reasoning_effort` (Anthropic's `effort`, a level of Ollama's `think`) that the model's chat
  template has no variable for bounds the reasoning, too, unless `max_thinking_tokens` does:
  EFFORTS.
- `structural_tag` is `{"structures": [...], "triggers": [...]}` or vLLM's newer `{"format": ...}`
  of the types `const_string`, `json_schema`, `regex`, `grammar`, `any_text`, `sequence`, `or`,
  `tag`, `triggered_tags` and `tags_with_separator`. `any_text` and `triggered_tags` come last, or
  `any_text` in a tag with an end. What does not fit is refused by its path.
- `eos_id` of Saxml's extra inputs is `stop_sequence` and replaces the model's own end tokens.
  `temperature` may be a tensor there, a number for each sample, and `per_example_top_p` 0: the
  likeliest token alone.
"""


def _efforts() -> str:
    """Return the bounds of efforts, in words."""
    known = (f"`{name}` {tokens}" for name, tokens in THINKING_TOKENS.items() if tokens is not None)
    free = (f"`{name}`" for name, tokens in THINKING_TOKENS.items() if tokens is None)
    return f"{', '.join(known)} tokens; {' and '.join(free)} do not"


def page() -> str:
    rows = (_line(name, row) for name, row in SAMPLING.items())
    return "\n".join(
        (
            _HEAD.replace("EFFORTS", _efforts()),
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


_NOT_SAXML = (Kind.TEXT, Kind.TEXTS, Kind.BIASES)


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
