"""Numbers are mixed only where the code says how."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _strict_promotion(strict_promotion: None) -> None:
    """Applies to every test of this folder."""
