"""What is installed here; what is said where it is not: tests/test_dependencies.py."""

from __future__ import annotations

import sys

import pytest

from sax.host import missing_model_server


def test_where_jax_is_nothing_is_missing() -> None:
    assert missing_model_server("`sax up`") is None


def test_where_it_is_not_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    assert missing_model_server("`sax up`") == (
        "`sax up` needs jax, which is not installed here: pip install '.[cpu]' in a clone of sax"
    )
