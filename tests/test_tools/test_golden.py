"""The golden cases are what transformers itself saves, at least one of each family."""

from __future__ import annotations

from collections import defaultdict

from tests.model_server.models.family_cases import config_of
from tests.tools.golden.families.maker import ROWS


def test_of_each_family_a_case_has_the_tensors_that_transformers_saves() -> None:
    """Else what it saves might be refused, as it was of MiniMax and OLMo Hybrid."""
    by_family: dict[str, list[bool]] = defaultdict(list)
    for name, case in ROWS.items():
        kind = str(case.known_as.get("model_type") or config_of(name)["model_type"])
        by_family[kind.removesuffix("_text")].append(case.is_as_saved)
    assert [family for family, saved in by_family.items() if not any(saved)] == []
