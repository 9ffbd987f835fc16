"""What is installed here: an SDK and a control plane need no jax, whatever computes does.

The one place that asks. Knows nothing of what the model server imports.
"""

from __future__ import annotations

import importlib.util


def missing_model_server(what: str) -> str | None:
    """Why `what` cannot run here and what to do about it; None where it can."""
    if importlib.util.find_spec("jax") is not None:
        return None
    # Not from an index: the sax of PyPI is another project.
    how = "pip install '.[model-server]' in a clone of sax"
    return f"{what} needs jax, which is not installed here: {how}"
