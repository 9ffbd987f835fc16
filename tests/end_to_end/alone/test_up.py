"""`sax up` and `sax demo`: one command, a whole cell, a clean end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from sax.cli.local.cell_plan import CellPlan
from tests.demo_model import ROOT
from tests.end_to_end.cell import READY_S, SMOLLM2, local_plan
from tests.end_to_end.command import Command, options, sax
from tests.end_to_end.conftest import FLAGS


def ask(plan: CellPlan) -> str:
    body = {"model": SMOLLM2, "prompt": "The sky is", "max_tokens": 4, "temperature": 0}
    url = f"{plan.gateway_url}/v1/completions"
    response = httpx.post(url, json=body, timeout=READY_S, trust_env=False)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def test_the_demo_outlives_its_model_server_and_up_remembers_what_it_published(
    gguf: Path, tmp_path: Path
) -> None:
    plan = local_plan(tmp_path / "cell")
    with sax("demo", str(gguf), *options(plan), "--", *FLAGS) as demo:
        demo.until("Ctrl-C drains and stops.")
        assert "\x1b" not in demo.output
        assert "Paris" in demo.output
        before = ask(plan)
        os.kill(_model_server_pid(plan), signal.SIGKILL)
        demo.until("model server died (killed by SIGKILL); restarting it")
        deadline = time.monotonic() + READY_S
        while (text := _answer_or_none(plan)) is None and time.monotonic() < deadline:
            time.sleep(0.5)
        assert text == before, demo.output
        run_its_commands(demo)  # the last publishes the model anew
        assert demo.end(signal.SIGINT) == 0, demo.output
    drained = re.findall(r"draining the (.+)", demo.output)
    assert drained == ["gateway", "model server", "admin server"]
    with sax("up", *options(plan), "--", *FLAGS) as again:
        again.until("is up")
        admin = f"--admin={plan.admin_address}"
        words = [sys.executable, "-m", "sax.cli", admin, "wait", SMOLLM2, "--timeout", "200"]
        waited = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
        assert waited.returncode == 0, waited.stderr
        assert ask(plan) == before
        assert again.end(signal.SIGTERM) == 0, again.output


def run_its_commands(demo: Command) -> None:
    """Those that the demo prints for its user."""
    lines = [line for line in demo.lines if line.startswith(("LB_IP=", "curl "))]
    assert len(lines) == 6
    script = "set -e\n" + "".join(f"{line.rstrip()}; echo\n" for line in lines[:4])
    ran = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert '"active_replicas": 1' in ran.stdout
    published = f"set -e\n{lines[0]}{lines[4]}"
    ran = subprocess.run(["sh", "-c", published], capture_output=True, text=True, check=True)
    assert f'"model": "{SMOLLM2}"' in ran.stdout


@pytest.mark.nightly  # with the wish of its command line; `sax demo` publishes as it does
def test_up_publishes_what_its_command_line_names(gguf: Path, tmp_path: Path) -> None:
    plan = local_plan(tmp_path / "cell")
    with sax("up", "--publish", f"{SMOLLM2} llama {gguf}", *options(plan), "--", *FLAGS) as first:
        first.until("is up")
        assert "ready" in first.output
        assert ask(plan)
        assert first.end(signal.SIGINT) == 0, first.output


def _model_server_pid(plan: CellPlan) -> int:
    """The process that was started with this plan's model server port."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_text().split("\0")
        except OSError:  # it has just ended
            continue
        if "model_server" in arguments and f"--port={plan.model_port}" in arguments:
            return int(folder.name)
    raise AssertionError("the model server does not run")


def _answer_or_none(plan: CellPlan) -> str | None:
    try:
        return ask(plan)
    except (AssertionError, httpx.TransportError):
        return None


def test_up_names_a_port_that_is_taken_and_the_flag_that_moves_it(tmp_path: Path) -> None:
    plan = local_plan(tmp_path / "cell")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", plan.admin_port))
        holder.listen()
        with sax("up", *options(plan)) as command:
            assert command.process.wait(60) == 1
    assert f"port {plan.admin_port}" in command.output
    assert "--admin-port" in command.output
    assert "Traceback" not in command.output


def test_up_gives_up_on_a_flag_the_model_server_does_not_know(tmp_path: Path) -> None:
    plan = local_plan(tmp_path / "cell")
    with sax("up", *options(plan), "--", "--slotz=3") as command:
        command.until("does not start")
        assert command.process.wait(60) == 1
    assert "--slotz" in command.output
    assert "Traceback" not in command.output


@pytest.mark.nightly
def test_a_killed_supervisor_leaves_no_process_behind(tmp_path: Path) -> None:
    plan = local_plan(tmp_path / "cell", servers=2)
    with sax("up", *options(plan)) as command:
        command.until("is up")
        assert all(
            f"{server.name}  {server.address}" in command.output for server in plan.model_servers
        )
        os.kill(command.process.pid, signal.SIGKILL)
        assert _free_within(plan, 60)


def _free_within(plan: CellPlan, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(_answers(port.number) for port in plan.ports):
            return True
        time.sleep(0.2)
    return False


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
