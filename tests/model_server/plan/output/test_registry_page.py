"""The page of plans: what is compiled for it takes an hour, so only its form is tested."""

from __future__ import annotations

from model_server.plan.output.registry_page import CASES, TUTORIAL, Case, page
from tests.demo_model import ROOT
from tests.model_server.tpu_compiler import needs_compiler


def test_the_page_in_docs_has_every_case_and_says_what_the_tutorials_chips_hold() -> None:
    text = (ROOT / "docs" / "reference" / "plans.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    for case in CASES:
        model, where = case.model.rpartition("params.")[2], case.topology
        assert any(f"`{model}` | `{where}`" in line for line in lines), case
    assert f"{TUTORIAL.model.rpartition('.')[2]} fits {TUTORIAL.topology}: each chip has" in text
    assert "{{" not in text


@needs_compiler
def test_what_does_not_fit_has_a_line_with_what_to_change() -> None:
    too_large = Case("meta-llama/Llama-3-8B", "v5e:1x1")
    (line,) = [line for line in page([too_large]).splitlines() if "Llama-3-8B" in line]
    assert "GiB is available; --set " in line
    assert "| no: weights " in line
