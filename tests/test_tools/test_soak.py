"""A short soak: no answer is lost, nothing is compiled while serving, everything is given back."""

import random
from pathlib import Path

import pytest

from sax.fields.table import fields_of
from tests.end_to_end.cell import Cell, local_plan
from tests.tools.soak.__main__ import report
from tests.tools.soak.random_request import ROUTES, random_request
from tests.tools.soak.story import FLAGS, publish, soak


def test_every_field_of_the_table_takes_part() -> None:
    draw = random.Random(0)
    seen = {route: set[str]() for route in ROUTES}
    for _ in range(4000):
        request = random_request(draw)
        seen[request.route] |= set(request.body)
    for route in ROUTES:
        missing = {name for name in fields_of(route) if "." not in name} - seen[route]
        assert missing <= {"dimensions", "encoding_format", "messages"}


@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_a_short_soak_loses_nothing_compiles_nothing_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    with Cell(local_plan(tmp_path / "cell", *FLAGS)) as cell:
        publish(cell, tmp_path)
        made = await soak(cell, seconds=30, seed=1)
    told = report(made, 30).markdown() + "\n".join(made.lost)
    assert not made.lost, told
    assert made.compiles == 0, told
    assert not any(made.left_behind.values()), told
    assert made.total("answered") > made.total("refused"), told
