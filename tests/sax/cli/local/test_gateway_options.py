"""Options of `sax up`, `demo` and `run` that are the gateway's own flags."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_group
from typer.testing import CliRunner

from http_gateway.config import GatewayConfig, parse_flags
from sax.cli.local.bring_up import Work
from sax.cli.local.cell_plan import CellPlan
from sax.cli.local.gateway_options import PLANNED
from sax.cli.main import app


@pytest.mark.parametrize("command", ["up", "demo", "run"])
def test_every_flag_that_the_plan_does_not_set_is_an_option_in_a_group(command: str) -> None:
    params = get_group(app).commands[command].params
    offered = {
        each.name for each in params if "Gateway" in (getattr(each, "rich_help_panel", "") or "")
    }
    assert offered == set(GatewayConfig.__dataclass_fields__) - set(PLANNED)
    told = CliRunner().invoke(app, [command, "--help"]).stdout
    assert told.index("--json") < told.index("Gateway: limits:") < told.index("--max-body-bytes")


def test_what_is_given_reaches_the_gateway_and_its_parser_takes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plans: list[CellPlan] = []

    async def note(plan: CellPlan, work: Work) -> None:
        plans.append(plan)

    monkeypatch.setattr("sax.cli.local.up.run_cell", note)
    words = ["--lenient", "--cors_origins", "*", "--max-body-bytes=9", "--access-log", "off"]
    made = CliRunner().invoke(app, ["up", "--dir", str(tmp_path), *words])
    assert made.exit_code == 0, made.output
    (plan,) = plans
    assert plan.gateway_flags == (
        "--cors_origins=*",
        "--access_log=off",
        "--max_body_bytes=9",
        "--lenient",
    )
    config = parse_flags([*plan.children[-1].flags])
    assert (config.lenient, config.cors_origins, config.max_body_bytes) == (True, "*", 9)
    assert CliRunner().invoke(app, ["up", "--access_log", "loud"]).exit_code == 2
    assert len(plans) == 1
