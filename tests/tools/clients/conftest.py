"""The cell that all clients ask, and the runs of their programs: one each, however many checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from sax.cli.main import app
from tests.demo_model import demo_model
from tests.end_to_end.cell import SMOLLM2, Cell, local_plan
from tests.end_to_end.conftest import FLAGS
from tests.end_to_end.tool_template import TEMPLATE
from tests.processes import free_ports
from tests.tools.clients.clients import CLIENTS, HERE, NPM, PACKAGES, ClientProgram
from tests.tools.clients.record import PASSED, CheckResult, write_record
from tests.tools.clients.scripted import MODEL as AGENT_MODEL

TOOLS_MODEL = "/sax/test/tools"
RECORD_VARIABLE = "SAX_CLIENTS_RECORD"  # set: write the record of this run

Run = Callable[[ClientProgram], dict[str, CheckResult]]


@pytest.fixture(scope="session")
def clients_cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    with Cell(local_plan(tmp_path_factory.mktemp("cell"), *FLAGS)) as cell:
        cell.publish(str(demo_model()))
        cell.publish(str(demo_model()), model=TOOLS_MODEL, overrides={"CHAT_TEMPLATE": TEMPLATE})
        yield cell


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, clients_cell: Cell) -> Path:
    """The demo model as a Hugging Face folder, for clients that count tokens themselves."""
    folder = tmp_path_factory.mktemp("tokenizer") / "smollm2"
    converted = clients_cell.sax("convert", str(demo_model()), str(folder))
    assert converted.returncode == 0, converted.stderr
    return folder


@pytest.fixture(scope="session")
def scripted_url() -> Iterator[str]:
    """A gateway whose model plays an agent's part."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "tests.tools.clients.scripted", "--port", str(port)]
    with subprocess.Popen(command) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            _wait_for(f"{url}/healthz")
            yield url
        finally:
            process.terminate()


def _wait_for(url: str, within_s: float = 60) -> None:
    end = time.monotonic() + within_s
    while True:
        try:
            httpx.get(url).raise_for_status()
        except httpx.TransportError:
            assert time.monotonic() < end, f"{url} does not answer"
            time.sleep(0.2)
        else:
            return


@pytest.fixture(scope="session")
def agents(tmp_path_factory: pytest.TempPathFactory, scripted_url: str) -> dict[str, str]:
    """Variable -> a script that starts an agent as `sax launch` prints it, in a home of its own."""
    folder = tmp_path_factory.mktemp("agents")
    made: dict[str, str] = {}
    for name in (client.agent for client in CLIENTS if client.agent):
        printed = CliRunner().invoke(app, ["launch", name, "--url", scripted_url, "--print"])
        *exports, command = printed.stdout.splitlines()
        home = [f"export HOME={folder}", f'export PATH={NPM}:"$PATH"']
        script = folder / f"{name}.sh"
        script.write_text(
            "\n".join(["#!/bin/sh", *home, *exports, f'exec {command} "$@" </dev/null'])
        )
        script.chmod(0o755)
        made[f"SAX_CLIENTS_{name.upper()}"] = str(script)
    return made


@pytest.fixture(scope="session")
def environ(
    clients_cell: Cell, tokenizer: Path, agents: dict[str, str], scripted_url: str
) -> dict[str, str]:
    return {
        **os.environ,
        **agents,
        "NO_PROXY": "127.0.0.1",
        "SAX_CLIENTS_URL": clients_cell.url,
        "SAX_CLIENTS_MODEL": SMOLLM2,
        "SAX_CLIENTS_TOOLS_MODEL": TOOLS_MODEL,
        "SAX_CLIENTS_TOKENIZER": str(tokenizer),
        "SAX_CLIENTS_AGENT_URL": scripted_url,
        "SAX_CLIENTS_AGENT_MODEL": AGENT_MODEL,
        "SAX_CLIENTS_PACKAGES": str(PACKAGES),
    }


@pytest.fixture(scope="session")
def outcome(environ: dict[str, str]) -> Iterator[Run]:
    """Runs a client's program once; returns the result of each of its checks."""
    done: dict[str, dict[str, CheckResult]] = {}

    def run(client: ClientProgram) -> dict[str, CheckResult]:
        if client.name not in done:
            done[client.name] = {each.check: each for each in _run(client, environ)}
        return done[client.name]

    yield run
    if os.environ.get(RECORD_VARIABLE):
        write_record([each for client in CLIENTS for each in done.get(client.name, {}).values()])


def _run(client: ClientProgram, environ: dict[str, str]) -> list[CheckResult]:
    reading, writing = os.pipe()
    # -P: what lies beside the program is not to be imported instead of a client.
    command = [str(client.python), "-P", str(HERE / "runner.py"), str(client.path)]
    process = subprocess.Popen(
        command, env={**environ, "SAX_CLIENTS_REPLY": str(writing)}, pass_fds=[writing]
    )
    os.close(writing)
    with os.fdopen(reading) as reply:
        told = [json.loads(line) for line in reply]
    assert process.wait(60) == 0
    return [_result(client.name, each) for each in told]


def _result(client: str, told: dict[str, Any]) -> CheckResult:
    result = told["failure"] or PASSED
    return CheckResult(client, told["version"], told["check"], result)
