"""Runs jaxlib's client against the proxy server; a process of its own, with two devices.

python -m tests.model_server.pathways.conformance.report [--page]

Prints what was found as JSON; with --page the table of docs/pathways.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from model_server.pathways.protocol.kinds import REQUESTS
from model_server.pathways.protocol.messages import IfrtRequest
from model_server.pathways.proxy.front import Front
from model_server.pathways.proxy.greeting import PROTOCOL, SERDES
from model_server.pathways.roles.local import InProcessHost
from model_server.pathways.roles.serving import ListeningProxy
from model_server.pathways.worker.devices import IslandDevices
from model_server.pathways.worker.executor import Executor
from tests.model_server.pathways.conformance.recording_front import RecordingFront
from tests.model_server.pathways.waiting import until

CLIENT = Path(__file__).parents[1] / "roles" / "proxy_client.py"
Found = Mapping[str, Any]


async def found() -> Found:
    """Return what the client's program tells, and how requests of each kind are answered."""
    front = RecordingFront()
    executor = Executor(IslandDevices(jax.devices()))
    front.island(0).begin([InProcessHost(executor)])
    front.survey()
    proxy = ListeningProxy(front)
    port = await proxy.start("127.0.0.1:0", None)
    client = await asyncio.create_subprocess_exec(
        sys.executable, str(CLIENT), str(port), "conformance", stdout=subprocess.PIPE
    )
    told, _ = await client.communicate()
    sent = {kind: dict(codes) for kind, codes in front.answers.items()}
    empty = await answered_when_empty(front)
    await proxy.stop()
    return {
        "told": dict(map(json.loads, told.splitlines())),
        "sent": sent,
        "empty": empty,
        "carried out": ["init_request", *executor.kinds],
    }


async def answered_when_empty(front: RecordingFront) -> dict[str, int]:
    """Return the gRPC code with which a request of each kind without any field is answered."""
    session = front.open()
    codes: dict[str, int] = {}
    for number, kind in enumerate(REQUESTS, 1):
        front.answers.clear()
        request = IfrtRequest()
        request.request_metadata.op_id = number
        getattr(request, kind).SetInParent()
        await front.serve(session, request.SerializeToString())
        await until(lambda kind=kind: bool(front.answers[kind]), 20)
        codes[kind] = next(iter(front.answers[kind]))
    Front.close(front, session)
    return codes


def table(of: Found) -> str:
    """Return the table of the page."""
    lines = [
        f"| kind of request (jaxlib {version('jaxlib')}: protocol {PROTOCOL}, serdes {SERDES}) "
        "| sent by jax in the test | answer |",
        "|---|---|---|",
    ]
    for kind in REQUESTS:
        name = kind.removesuffix("_request").replace("_", " ")
        answer = "carried out" if kind in of["carried out"] else "refused in a sentence"
        lines.append(f"| {name} | {'yes' if kind in of['sent'] else ''} | {answer} |")
    return "\n".join(lines)


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    of = asyncio.run(found())
    sys.stdout.write(table(of) if sys.argv[1:] == ["--page"] else json.dumps(of))
    sys.stdout.write("\n")
    sys.stdout.flush()
    os._exit(0)  # threads of the executor may wait


if __name__ == "__main__":
    main()
