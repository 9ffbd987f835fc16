"""Model names as Ollama's clients write them: with a tag, which is `latest` unless they say so."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from sax.errors import InvalidRequest
from sax.format import quoted
from sax.names import ModelId
from sax.types import PublishedModel

TAG = ":latest"
HUBS = ("hf.co/", "huggingface.co/", "hf://")
_CELL = "test"  # what `sax up` calls a cell


def untagged(name: str) -> str:
    """Return the name that the catalog knows: a name in full without the tag, else the last part,
    with the tag unless it is latest, in the letters that names here have.

    hf.co/Org/Qwen3-0.6B is qwen3-0-6b, and smollm2:small is smollm2-small.
    """
    plain = name.removesuffix(TAG)
    if plain.startswith("/"):
        return plain
    last = plain.lower().rstrip("/").rpartition("/")[2]
    return re.sub("[^a-z0-9_-]", "-", last)


def model_id(name: str, known: Iterable[PublishedModel]) -> str:
    """Return the full name of a model to publish: in the cell of the others.

    Raises InvalidName.
    """
    last = untagged(name)
    if last.startswith("/"):
        return str(ModelId.parse(last))
    cells = {ModelId.parse(each.spec.model_id).cell for each in known}
    if not last[:1].isalpha():
        last = f"m-{last}"
    return str(ModelId.parse(f"/sax/{min(cells, default=_CELL)}/{last}"))


def checkpoint_of(name: str) -> str:
    """Return the checkpoint that a name of a hub's repository stands for.

    Raises InvalidRequest for a name of Ollama's own registry, which is not read.
    """
    plain = name.removesuffix(TAG)
    for hub in HUBS:
        plain = plain.removeprefix(hub)
    repository, _, file = plain.partition(":")
    if repository.count("/") != 1:
        raise InvalidRequest(
            f"{quoted(name)} is a name of Ollama's registry, which is not read: pull a repository "
            "of a Hugging Face hub, as hf.co/ORG/NAME or hf.co/ORG/NAME:Q4_K_M",
            param="model",
        )
    return f"hf://{repository}@main:{file}" if file else f"hf://{repository}"


def tagged(models: Sequence[PublishedModel]) -> list[str]:
    """Return a name for each: its last part, or in full where several have the same."""
    last = [model.spec.model_id.rpartition("/")[2] for model in models]
    counts = Counter(last)
    return [
        f"{part if counts[part] == 1 else model.spec.model_id}{TAG}"
        for part, model in zip(last, models, strict=True)
    ]
