"""A cell of real processes on free ports, for tests: start, kill, start again, always clean up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import grpc
import httpx

from sax.cli.local.cell_plan import ADMIN, GATEWAY, CellPlan, check_ports
from sax.cli.local.child import Child
from sax.cli.local.server_plan import MODEL_SERVER
from sax.errors import InvalidRequest
from sax.host import machine_memory
from sax.proto import admin_pb2, admin_pb2_grpc
from tests.demo_model import COMPILE_CACHE, ROOT
from tests.identities import Identities
from tests.processes import free_ports, resident

__all__ = ["ADMIN", "GATEWAY", "MODEL_SERVER", "Cell", "free_ports", "local_plan"]

READY_S = 240.0  # a cold compile on two busy cores
SMOLLM2 = "/sax/test/smollm2"

T = TypeVar("T")


def local_plan(
    folder: Path,
    *model_server_flags: str,
    saxml_generation: int = 2,
    tokens: Path | None = None,
    admin_acl: str = "",
    servers: int = 1,
    hosts: int = 1,
    devices_per_host: int | None = None,
    islands: int = 0,
    devices_per_island: int = 1,
) -> CellPlan:
    """A cell in this folder on free ports."""
    while True:
        gateway, admin, model, status, metrics, group, pathways = free_ports(7)
        plan = CellPlan(
            folder=folder,
            compile_cache=COMPILE_CACHE,
            gateway_port=gateway,
            admin_port=admin,
            model_port=model,
            status_port=status,
            metrics_port=metrics,
            group_port=group,
            saxml_generation=saxml_generation,
            model_server_flags=model_server_flags,
            tokens=tokens,
            admin_acl=admin_acl,
        )
        with suppress(InvalidRequest):  # a port of a further server is taken: draw again
            plan = replace(
                plan,
                servers=servers,
                hosts=hosts,
                devices_per_host=devices_per_host,
                islands=islands,
                devices_per_island=devices_per_island,
                pathways_port=pathways,
                memory=machine_memory(),
            )
            check_ports(plan.ports)
            return plan


class Cell:
    """The processes of one cell, unsupervised. Their flags are those that `sax up` gives them.

    They have the names of the plan's children: "model server", or "model server host 2" in a gang.
    """

    def __init__(
        self,
        plan: CellPlan,
        identities: Identities | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """With `identities`, all its processes and `sax` call as the first of them.

        environ: variables of its processes, besides those of this one.
        """
        self.plan = plan
        self.identities = identities
        self._environ = {**os.environ, **(environ or {})}
        self._account: dict[str, str] = {}
        self.headers: dict[str, str] = {}
        if identities is not None:
            operator = next(iter(identities.tokens))
            self._account["SAX_TOKEN"] = identities.tokens[operator]
            self.headers = identities.headers(operator)
        self.url = plan.gateway_url
        self.http = httpx.Client(
            base_url=self.url, timeout=READY_S, trust_env=False, headers=self.headers
        )
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._paused: set[str] = set()
        self._disturbed: set[str] = set()  # gangs, or lone processes, that may well be dead
        # Held open while we live: children end when it closes (see sax.cli.local.leash).
        self._leash, self._leash_writer = os.pipe()

    def __enter__(self) -> Cell:
        try:
            for child in self.plan.children:
                self.start(child.name)
            self.wait_until_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process, gently first; afterwards none is left."""
        self.http.close()
        for name in self._paused:
            self._processes[name].kill()
        # A primary tells the other hosts to end; they have nothing of their own to drain.
        others = {name for gang in self.gangs() for name in gang[1:]}
        first = [process for name, process in self._processes.items() if name not in others]
        for process in first:
            process.terminate()
        for process in first:
            _end(process, 30)
        for process in self._processes.values():
            _end(process, 5)
        os.close(self._leash)
        os.close(self._leash_writer)

    # --- processes ---

    def start(self, name: str) -> None:
        """Start one process, with the flags and the log it always has."""
        child = self._child(name)
        self._disturbed.discard(child.gang or name)
        child.log.parent.mkdir(parents=True, exist_ok=True)
        with child.log.open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "sax.cli.local.leash", child.module, *child.flags],
                stdin=self._leash,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**self._environ, **self._account, **dict(child.environ)},
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """kill -9, and wait for the body. The other hosts of its gang will end by themselves."""
        self._signal(name, signal.SIGKILL)
        self._processes[name].wait()
        self._paused.discard(name)

    def stop(self, name: str) -> int:
        """SIGTERM; returns the exit code."""
        self._signal(name, signal.SIGTERM)
        return self._processes[name].wait(60)

    def terminate(self, name: str) -> None:
        """SIGTERM, without waiting for the end; `ended` does."""
        self._signal(name, signal.SIGTERM)

    def pause(self, name: str) -> None:
        """SIGSTOP: the process is there and answers nobody."""
        self._signal(name, signal.SIGSTOP)
        self._paused.add(name)

    def resume(self, name: str) -> None:
        """SIGCONT after a pause."""
        self._signal(name, signal.SIGCONT)
        self._paused.discard(name)

    def ended(self, name: str, within_s: float = 60) -> int:
        """Wait for a process to end by itself; returns its exit code."""
        return self._processes[name].wait(within_s)

    def gangs(self) -> list[tuple[str, ...]]:
        """The hosts of every model server by name, the primary first; a lone one is one host."""
        servers: dict[str, list[str]] = {}
        for child in self.plan.children:
            if child.module == "model_server":
                servers.setdefault(child.gang or child.name, []).append(child.name)
        return [tuple(names) for names in servers.values()]

    def restart(self, gang: tuple[str, ...]) -> None:
        """What a supervisor does once a host is lost: all of them end, all start again."""
        for name in gang:
            self.kill(name)
        for name in gang:
            self.start(name)

    def _signal(self, name: str, number: signal.Signals) -> None:
        self._disturbed.add(self._child(name).gang or name)
        self._processes[name].send_signal(number)

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def pids(self) -> dict[str, int]:
        """The process ids of all processes that are alive, by name."""
        return {name: self.pid(name) for name in self._processes if self.alive(name)}

    def resident(self, name: str) -> int:
        """Resident bytes of one process."""
        return resident(self.pid(name))

    def memory(self) -> int:
        """Resident bytes of all processes."""
        return sum(map(resident, self.pids().values()))

    def alive(self, name: str) -> bool:
        return self._processes[name].poll() is None

    def log(self, name: str) -> str:
        return self._child(name).log.read_text(errors="replace")

    def _child(self, name: str) -> Child:
        return next(child for child in self.plan.children if child.name == name)

    # --- waiting ---

    def eventually(self, look: Callable[[], T], what: str, within_s: float = READY_S) -> T:
        """The first truthy value of `look`; fails with the logs when none comes."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            value = look()
            if value:
                return value
            dead = [
                child.name
                for child in self.plan.children
                if (child.gang or child.name) not in self._disturbed
                and child.name in self._processes
                and not self.alive(child.name)
            ]
            assert not dead, f"{dead} died while waiting for {what}\n{self.logs()}"
            time.sleep(0.1)
        raise AssertionError(f"not within {within_s} s: {what}\n{self.logs()}")

    def logs(self) -> str:
        names = [name for name in self._processes if self._child(name).log.exists()]
        tails = (f"--- {name}\n" + "\n".join(self.log(name).splitlines()[-15:]) for name in names)
        return "\n".join(tails)

    def wait_until_up(self) -> None:
        """All answer, and every model server has joined."""
        self.eventually(lambda: self._answers("/healthz"), "the gateway answers")
        self.eventually(self.joined, "every model server has joined")

    def joined(self) -> bool:
        return len(self._seen().servers) >= self.plan.servers

    def ready_replicas(self, model: str = SMOLLM2) -> int:
        """As the admin server lists them; 0 while it does not answer."""
        seen = self._seen().published_models
        return sum(each.ready_replicas for each in seen if each.model.model_id == model)

    def _seen(self) -> admin_pb2.ListResponse:
        """The whole cell as its admin server lists it, asked without a process; nothing if it does
        not answer."""
        people = self.identities
        who = () if people is None else tuple(people.metadata(next(iter(people.tokens))))
        with grpc.insecure_channel(self.plan.admin_address) as channel:
            stub = admin_pb2_grpc.AdminStub(channel)
            try:
                return stub.List(admin_pb2.ListRequest(), metadata=who, timeout=10)
            except grpc.RpcError:
                return admin_pb2.ListResponse()

    def _answers(self, path: str) -> bool:
        try:
            return self.http.get(path).is_success
        except httpx.TransportError:
            return False

    # --- talking ---

    def sax(
        self, *words: str, stdin: str | None = None, token: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run the CLI against this cell, as a person would in a pipe; maybe with their token."""
        account = {"SAX_TOKEN": token} if token else self._account
        return subprocess.run(
            [sys.executable, "-m", "sax.cli", "--admin", self.plan.admin_address, *words],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, **account},
        )

    def publish(
        self,
        checkpoint: str,
        *,
        model: str = SMOLLM2,
        model_path: str = "llama",
        replicas: int = 1,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        """Publish and wait until ready."""
        words = [f"{key}={json.dumps(value)}" for key, value in (overrides or {}).items()]
        result = self.sax("publish", model, model_path, checkpoint, str(replicas), *words, "--wait")
        assert result.returncode == 0, f"{result.stderr}\n{self.logs()}"

    def listed(self, model: str = SMOLLM2) -> dict[str, Any]:
        """`sax ls MODEL --json`."""
        result = self.sax("ls", model, "--json")
        assert result.returncode == 0, result.stderr
        value: dict[str, Any] = json.loads(result.stdout)
        return value

    def complete(
        self, prompt: str, *, model: str = SMOLLM2, max_tokens: int = 8, **fields: Any
    ) -> httpx.Response:
        """POST /v1/completions, greedy unless told otherwise."""
        body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        return self.http.post("/v1/completions", json={**body, **fields})

    def text(self, prompt: str, **fields: Any) -> str:
        """The greedy text of a completion."""
        response = self.complete(prompt, **fields)
        assert response.status_code == 200, response.text
        text: str = response.json()["choices"][0]["text"]
        return text

    def metric(self, name: str, model: str = SMOLLM2) -> float:
        """One figure of the model server for one model."""
        for line in self.metrics_page().splitlines():
            if line.startswith(f'{name}{{model="{model}"}} '):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no metric {name} for {model}")

    def metrics_page(self) -> str:
        """All figures of the model server."""
        url = f"http://127.0.0.1:{self.plan.metrics_port}/metrics"
        return httpx.get(url, trust_env=False).text


def _end(process: subprocess.Popen[bytes], within_s: float) -> None:
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
