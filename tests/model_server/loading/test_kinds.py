"""Kinds of model are imported when the first of them is loaded."""

from __future__ import annotations

from tests import house

LOADING = "model_server/loading/"


def test_a_language_model_is_loaded_without_what_loads_the_other_kinds() -> None:
    reached = house.reached([f"{LOADING}loader.py", f"{LOADING}language.py"])
    others = ("vision/", "audio/", "custom/", "adapter.py")
    assert [
        name for name in reached if name.startswith(tuple(LOADING + each for each in others))
    ] == []


def test_the_loader_alone_reaches_no_kind_and_no_engine() -> None:
    reached = house.reached([f"{LOADING}loader.py"])
    assert f"{LOADING}language.py" not in reached
    assert not any(name.startswith("model_server/engine/running/") for name in reached)
