"""The facts of chips against what jax's own table says of them."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh

from model_server.plan.slices import ALIASES, CHIPS, LENT
from model_server.plan.topology import topology_of
from tests.each_case import each_case
from tests.model_server.tpu_compiler import needs_compiler


@needs_compiler
@each_case("name", ["v5e", "v5p", "v6e", "v7x"])
def test_a_chip_is_about_as_jax_knows_it(name: str) -> None:
    """jax tells of one core; a v5p has two that are one device, a v7x two devices."""
    device = topology_of(f"{name}:{LENT[name][0]}").devices[0]
    with jax.set_mesh(Mesh(np.asarray([device]), ("x",))):
        known = pltpu.get_tpu_info()
    cores = 2 if name in ("v5p", "v7x") else 1
    chip = CHIPS[name]
    assert cores * known.mem_bw_bytes_per_second == pytest.approx(chip.hbm_rate, rel=0.12)
    assert cores * known.bf16_ops_per_second == pytest.approx(chip.bf16_rate, rel=0.01)
    assert cores * known.hbm_capacity_bytes == pytest.approx(chip.hbm, rel=0.01)
    if chip.int8_rate is not None:
        assert cores * known.int8_ops_per_second == pytest.approx(chip.int8_rate, rel=0.01)


def test_every_chip_names_its_source_and_leaves_a_part_of_its_memory_to_the_system() -> None:
    for chip in CHIPS.values():
        assert chip.source.startswith("https://cloud.google.com/tpu/docs/")
        assert 0.9 * chip.hbm < chip.usable * chip.devices < chip.hbm


def test_no_alias_stands_for_a_chip_that_is_not_there() -> None:
    assert set(ALIASES.values()) <= set(CHIPS)
