"""Checks for optional dependencies: the SDK and control plane run without jax."""

from __future__ import annotations

import importlib.util


def missing_model_server(what: str) -> str | None:
    """Return why `what` cannot run here and how to fix it; None if it can."""
    if importlib.util.find_spec("jax") is not None:
        return None
    # From a clone: the sax on PyPI is another project.
    how = "pip install '.[model-server]' in a clone of sax"
    return f"{what} needs jax, which is not installed here: {how}"
