"""docs/reference/models.md is what the registry and the golden cases say."""

from __future__ import annotations

import re

from model_server.models.families_page import ROOT, described, golden_cases, parameters
from model_server.models.registry import families, model_paths
from tests.docs.models_page import page


def test_the_page_is_current() -> None:
    """Also that every override of every class is explained: the page is not made otherwise."""
    assert (ROOT / "docs" / "reference" / "models.md").read_text() == page(), "run 'make docs'"


def test_every_family_has_a_golden_case_and_a_source() -> None:
    cases, told = golden_cases(), {family.path: described(family) for family in families()}
    untested = [f.path for f in families() if not any(map(cases.get, f.model_types))]
    assert untested == []
    assert [path for path, (computed, _) in told.items() if not computed] == []
    assert [path for path, (_, papers) in told.items() if not re.search(r"\d{4}", papers)] == []


def test_every_golden_case_is_of_a_family_or_a_class_of_the_page() -> None:
    known = {name for family in families() for name in family.model_types} | set(model_paths())
    assert set(golden_cases()) <= known


def test_parameters_are_counted_as_they_are_published() -> None:
    package = "saxml.server.pax.lm.params"
    assert parameters(f"{package}.lm_cloud.LLaMA7B") == 6_738_415_616
    assert parameters(f"{package}.gemma.Gemma7BFP16") == 8_537_680_896 + 128 * 3072  # vocabulary
