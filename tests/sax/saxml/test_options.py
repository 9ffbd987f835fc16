"""Options of Saxml's calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

import sax
from sax.errors import InvalidRequest


def test_one_key_has_one_kind_of_value() -> None:
    options = sax.ModelOptions()
    options.SetExtraInput("a", 1)
    options.SetExtraInput("a", 2)
    assert options.GetExtraInput("a") == 2.0
    with pytest.raises(InvalidRequest, match="another kind"):
        options.SetExtraInputString("a", "x")
    with pytest.raises(InvalidRequest, match="no number"):
        options.GetExtraInput("b")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_what_is_set_on_a_copy_stays_there(copied: Callable[[Any], Any]) -> None:
    options = sax.ModelOptions()
    options.SetExtraInput("a", 1)
    options.SetTimeout(5)
    other = copied(options)
    assert (other.GetExtraInput("a"), other.GetTimeout()) == (1.0, 5)
    other.SetExtraInput("a", 2)
    other.SetExtraInput("b", 3)
    other.SetTimeout(6)
    assert options.extra_inputs == {"a": 1.0}
    assert options.GetTimeout() == 5
    admin = sax.AdminOptions()
    other_admin = copied(admin)
    other_admin.timeout = 3
    assert admin.timeout == -1
