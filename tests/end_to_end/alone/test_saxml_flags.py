"""Command lines of Saxml's servers, as Google wrote them, start ours and get an answer."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.demo_model import ROOT
from tests.end_to_end.cell import READY_S, free_ports
from tests.end_to_end.small_model import PATH, SMALL, WORDS

GEMMA_PATH = "saxml.server.pax.lm.params.gemma.Gemma2BFP16Test"
ON_CPU = ("--jax_platforms=cpu", "--slots=2", "--max_context=256")

# The args of the containers in Google's manifests of Gemma on Saxml: the files
# ai-ml/llm-serving-gemma/saxml/saxml-{admin-server,http,model-server-1x1}.yaml. Those of the first
# two have none.
MODEL_SERVER = (
    "--jax_platforms=tpu",
    "--platform_chip=tpuv5e",
    "--platform_topology=1x1",
    "--port=10001",
    "--sax_cell=/sax/test",
)


class Process:
    """A process whose log is kept in a file."""

    def __init__(self, log: Path, *words: str, **environ: str) -> None:
        self._log = log
        unset = {name: value for name, value in os.environ.items() if not name.startswith("SAX_")}
        strict = {"SAX_STRICT_COMPILE": "1"}
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words],
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**unset, **strict, **environ},
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def until(self, look: Callable[[], bool], what: str) -> None:
        """Wait until it holds; fails with the log when it never does, or the process ends."""
        deadline = time.monotonic() + READY_S
        while not look():
            assert self.process.poll() is None, f"it ended before {what}\n{self.log}"
            assert time.monotonic() < deadline, f"never {what}\n{self.log}"
            time.sleep(0.2)

    def says(self, text: str) -> None:
        self.until(lambda: text in self.log, f"said {text!r}")

    def end(self) -> int:
        """Let it drain; returns the exit status."""
        self.process.terminate()
        return self.process.wait(60)


@contextmanager
def started(log: Path, *words: str, **environ: str) -> Iterator[Process]:
    process = Process(log, *words, **environ)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.end()
        process.process.kill()
        process.process.wait()


def saxutil(*words: str, **environ: str) -> str:
    """A line of saxutil; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "sax.cli.saxutil", *words],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.mark.nightly
def test_googles_manifests_of_gemma_start_a_cell_that_answers(tmp_path: Path) -> None:
    """The args and variables of its three containers, and behind them, since here is one machine
    without a TPU, ports of our own and the CPU."""
    bucket = f"file://{tmp_path}"
    here = {"POD_IP": "127.0.0.1"}
    admin_port, status, model_port, metrics, http_port = free_ports(5)
    with ExitStack() as stack:
        admin = stack.enter_context(
            started(
                tmp_path / "admin.log",
                *("sax.container", "admin_server", f"--status_port={status}"),
                **{"GSBUCKET": bucket, "PORT": str(admin_port), **here},
            )
        )
        admin.says("admin server of /sax/test listening")
        root = {"SAX_ROOT": f"{bucket}/sax-root"}
        model = stack.enter_context(
            started(
                tmp_path / "model.log",
                *("sax.container", "model_server", *MODEL_SERVER),
                *(*ON_CPU, f"--port={model_port}", f"--metrics_port={metrics}"),
                **{**root, **here},
            )
        )
        gateway = stack.enter_context(
            started(
                tmp_path / "http.log",
                *("sax.container", "http_gateway"),
                **{"PORT": str(http_port), **root},
            )
        )
        model.says("joined the admin server")
        saxutil("publish", "/sax/test/gemma-2b-it", GEMMA_PATH, "None", "1", *WORDS, **root)
        url = f"http://127.0.0.1:{http_port}"
        gateway.until(lambda: is_open(http_port), "it listened")
        asked = {"model": "/sax/test/gemma-2b-it"}

        def ready() -> bool:
            listed = httpx.request("GET", f"{url}/listcell", json=asked, trust_env=False)
            return listed.json().get("active_replicas") == 1

        model.until(ready, "the model was ready")
        query = {**asked, "query": "What are the top 5 programming languages?"}
        answer = httpx.post(f"{url}/generate", json=query, trust_env=False, timeout=READY_S)
        assert answer.status_code == 200, answer.text
        assert all(isinstance(score, float) for _, score in answer.json())
        assert answer.json()
        listed = saxutil("ls", "/sax/test/gemma-2b-it", **root)
        assert f"127.0.0.1:{model_port}" in listed


@pytest.mark.nightly
def test_a_model_of_the_flags_is_served_without_an_admin_server(tmp_path: Path) -> None:
    port, metrics, profiler = free_ports(3)
    static = (
        f"--models={PATH}",
        "--model_keys=/sax/test/own",
        "--checkpoints=None",
        f"--model_config_overrides={json.dumps(SMALL)}",
        "--keep_statically_loaded_models",
        "--deterministic_rng",
        f"--jax_profiler_port={profiler}",
    )
    words = ("model_server", f"-port={port}", f"--metrics_port={metrics}", *ON_CPU, *static)
    with started(tmp_path / "model.log", *words) as server:
        ready = f"http://127.0.0.1:{metrics}/readyz"

        def is_ready() -> bool:
            return is_open(metrics) and httpx.get(ready, trust_env=False).status_code == 200

        server.says("all 1 models of --model_keys are loaded")
        server.until(is_ready, "it was ready")
        assert is_open(profiler)
        ask = ("lm.generate", f"-proxy=127.0.0.1:{port}", "/sax/test/own", "How many days?")
        first = saxutil(*ask)
        assert first.strip()
        assert saxutil(*ask) == first
        assert "joined" not in server.log
        assert server.end() == 0


def test_the_line_of_googles_gpu_image_runs_a_whole_cell_in_one_server(tmp_path: Path) -> None:
    """admin_config, then a server with a model of its own and an admin server."""
    root = {"SAX_ROOT": str(tmp_path / "root")}
    port, admin_port, metrics = free_ports(3)
    state = tmp_path / "state"
    config = ("--sax_cell=/sax/test", f"--sax_root={root['SAX_ROOT']}", f"--fs_root={state}")
    with started(tmp_path / "config.log", "admin_server.cell_config", *config) as configured:
        assert configured.process.wait(60) == 0, configured.log
    words = (
        *("model_server", "-sax_cell=/sax/test", f"-port={port}", "-platform_chip=h100"),
        *("-platform_topology=8", "--jax_platforms=cuda", f"--models={PATH}"),
        *("--model_keys=/sax/test/gpu", "--checkpoints=None", f"--admin_port={admin_port}"),
        *(*ON_CPU, f"--metrics_port={metrics}", f"--model_config_overrides={json.dumps(SMALL)}"),
    )
    with started(tmp_path / "model.log", *words, **root) as server:
        server.says("all 1 models of --model_keys are loaded")
        server.says("joined the admin server")
        saxutil("publish", "/sax/test/gpu", PATH, "None", "1", *WORDS, **root)
        answer = saxutil("lm.generate", "/sax/test/gpu", "How many days?", **root)
        assert answer.strip()
        saxutil("unpublish", "/sax/test/gpu", **root)
        proxy = ("lm.generate", f"-proxy=127.0.0.1:{port}", "/sax/test/gpu", "How many days?")
        assert saxutil(*proxy).strip(), "what the flags loaded stays"
        assert server.log.count("loading completed") == 1
        assert list(state.rglob("*")), "the state is where admin_config says"
        assert server.end() == 0
        assert not is_open(admin_port)
