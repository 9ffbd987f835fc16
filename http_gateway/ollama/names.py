"""Model names as Ollama's clients write them: with a tag, which is `latest` here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sax.types import PublishedModel

TAG = ":latest"


def untagged(name: str) -> str:
    """Return the name that the catalog knows: none of its names has a colon."""
    return name.removesuffix(TAG)


def tagged(models: Sequence[PublishedModel]) -> list[str]:
    """Return a name for each: its last part, or in full where several have the same."""
    last = [model.spec.model_id.rpartition("/")[2] for model in models]
    counts = Counter(last)
    return [
        f"{part if counts[part] == 1 else model.spec.model_id}{TAG}"
        for part, model in zip(last, models, strict=True)
    ]
