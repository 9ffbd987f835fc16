"""What an address looks like."""

from __future__ import annotations

import pytest

from sax import config
from sax.errors import InvalidRequest


@pytest.mark.parametrize("text", ["localhost:1", "[::1]:10000", "admin.sax.svc:65535"])
def test_a_good_address_is_returned_as_it_is(text: str) -> None:
    assert config.check_address(text, "admin") == text


@pytest.mark.parametrize("text", ["http://host:1", "https://host:1/x", "host:1/"])
def test_a_url_is_told_the_address_in_it(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is a URL: give the address alone, 'host:1'"):
        config.check_address(text, "admin")
