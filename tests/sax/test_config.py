"""What an address looks like."""

from __future__ import annotations

import pytest

from sax import config


@pytest.mark.parametrize("text", ["localhost:1", "[::1]:10000", "admin.sax.svc:65535"])
def test_a_good_address_is_returned_as_it_is(text: str) -> None:
    assert config.check_address(text, "admin") == text
