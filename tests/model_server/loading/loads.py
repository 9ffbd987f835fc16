"""Publications of the tests, for the loader."""

from __future__ import annotations

from pathlib import Path

from sax.types import ModelSpec, Progress


def spec_of(
    checkpoint: Path | str, path: str = "auto", name: str = "m", **overrides: str
) -> ModelSpec:
    """One replica; overrides are JSON texts."""
    return ModelSpec(
        model_id=f"/sax/test/{name}",
        model_path=path,
        checkpoint=str(checkpoint),
        replicas=1,
        overrides=overrides,
    )


def quiet(_: Progress) -> None:
    """Nobody watches."""
