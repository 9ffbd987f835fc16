"""Reading `sax plan --json`."""

from __future__ import annotations

import pytest

from k8s.render.planned import read_plan
from sax.errors import MemoryPlanError, Unavailable
from tests.each_case import each_case
from tests.k8s.render.orders import plan, plan_text

_GIB = 2**30


def test_a_plan_that_fits_tells_what_manifests_need() -> None:
    made = plan()
    assert (made.topology, made.hosts, made.devices) == ("v5e:4x8", 8, 32)
    assert made.weights_of_slice == 352 * _GIB
    assert "11.0 GiB of weights" in str(made)


def test_a_model_that_does_not_fit_is_refused_in_the_plans_own_words() -> None:
    advice = ['--set QUANTIZE="int8": 9 GiB']
    text = plan_text(fits=False, problem="m does not fit: 22 GiB", advice=advice, memory=None)
    with pytest.raises(MemoryPlanError) as refused:
        read_plan(text)
    assert refused.value.text.startswith("m does not fit: 22 GiB\n")
    assert '--set QUANTIZE="int8": 9 GiB' in refused.value.text


@each_case("text", ["", "null", "[]", "{}", "Traceback", '{"fits": true}'])
def test_what_is_no_plan_is_told_so(text: str) -> None:
    with pytest.raises(Unavailable, match="--no-plan"):
        read_plan(text)
