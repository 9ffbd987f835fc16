"""The commands that ask a model for numbers: `embed`, `rerank`, `classify` and `gradient`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from sax.cli.model_argument import Model
from sax.cli.terminal import open_client
from sax.command import CommandResult, Results

Texts = Annotated[
    list[str],
    typer.Argument(metavar="TEXT...", help="Texts; - reads stdin, one text per line."),
]


def embed(
    ctx: typer.Context,
    model: Model,
    texts: Texts,
    dimensions: Annotated[
        int,
        typer.Option(min=0, help="Length of a vector, if the model offers shorter ones; 0: whole."),
    ] = 0,
    prompt_name: Annotated[
        str, typer.Option(help="The model's own prompt to put before each text.")
    ] = "",
) -> Results:
    """Turn texts into vectors with an embedding model.

    Prints one JSON list of numbers per text, one per line, in order.

    \b
    Examples:
      sax embed /sax/test/minilm "eating food" "eating a meal"
      sax embed /sax/test/qwen3 "What is a slot?" --prompt-name query --dimensions 256
      sax embed /sax/test/minilm - < sentences.txt > vectors.jsonl
    """
    with open_client(ctx) as client:
        for vector in client.embed(
            model, given(texts), dimensions=dimensions, prompt_name=prompt_name
        ):
            yield CommandResult(vector, json.dumps(vector))


def rerank(
    ctx: typer.Context,
    model: Model,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Text that documents may answer.")],
    documents: Texts,
    top_n: Annotated[int | None, typer.Option(min=1, help="Print only the best few.")] = None,
) -> Results:
    """Rank documents by how well they go with a query.

    Works with cross encoders and, by the cosine of their vectors, with embedding models. Prints a
    score, the document's place among those given, from 0, and the document, best first.

    \b
    Examples:
      sax rerank /sax/test/reranker "Where is Paris?" "In France." "It rains."
      sax rerank /sax/test/reranker "Where is Paris?" - --top-n 3 < lines.txt
    """
    texts = given(documents)
    with open_client(ctx) as client:
        found = client.rerank(model, query, texts, top_n)
    for each in found:
        entry = {"index": each.index, "relevance_score": each.relevance_score}
        line = f"{each.relevance_score:.6f}\t{each.index}\t{texts[each.index]}"
        yield CommandResult(entry, line)


def classify(ctx: typer.Context, model: Model, texts: Texts) -> Results:
    """Give texts a score per label with a classification model.

    Prints the likeliest label of each text and its score, in order; with --json all of them.

    \b
    Examples:
      sax classify /sax/test/sentiment "What a day!" "It rains."
      sax classify /sax/test/sentiment - --json < sentences.txt
    """
    with open_client(ctx) as client:
        found = client.classify(model, given(texts))
    for scores in found.scores:
        best = max(range(len(scores)), key=scores.__getitem__)
        line = f"{found.labels[best]}\t{scores[best]:.6f}"
        yield CommandResult(dict(zip(found.labels, scores, strict=True)), line)


def gradient(
    ctx: typer.Context,
    model: Model,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Text before the suffix.")],
    suffix: Annotated[str, typer.Argument(metavar="SUFFIX", help="Text that is scored.")],
) -> CommandResult:
    """Differentiate the loss of a text, as Saxml's LMService.Gradient.

    Prints JSON: the log-probability of the suffix, and a flat list of numbers per tensor. The model
    must be published for it, with TASKS=["generate","gradient"].

    \b
    Example:
      sax gradient /sax/test/smollm2 "Two and two are" " four"
    """
    with open_client(ctx) as client:
        found = client.gradient(model, prefix, suffix)
    value = {"score": found.score, "gradients": dict(found.gradients)}
    return CommandResult(value, json.dumps(value))


def given(texts: list[str]) -> list[str]:
    """Return the texts, with the lines of stdin in the place of "-"."""
    return [line for text in texts for line in (_lines() if text == "-" else [text])]


def _lines() -> list[str]:
    return [line for line in sys.stdin.read().splitlines() if line]
