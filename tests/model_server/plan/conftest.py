"""Programs are written to files, or are for chips that are not here: jax caches neither."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _compiled_anew(compiled_anew: None) -> None:
    """Applies to every test of this folder."""
