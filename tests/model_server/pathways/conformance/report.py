"""Runs jaxlib's client against the proxy server; a process of its own, with two devices.

python -m tests.model_server.pathways.conformance.report [--record] [--client PYTHON]

Prints what was found as JSON; with --record it is also kept as the record of this jaxlib. The
client may run on another Python, with another version of jax.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import msgspec

from model_server.pathways.http2.server import GrpcServer
from model_server.pathways.protocol import REQUESTS, IfrtRequest
from model_server.pathways.proxy.service import agreed
from model_server.pathways.roles.local import InProcessHost
from model_server.pathways.worker.devices import IslandDevices
from model_server.pathways.worker.executor import Executor
from tests.model_server.pathways.conformance.record import (
    CARRIED_OUT,
    ConformanceRecord,
    Kind,
    Spoken,
    keep,
)
from tests.model_server.pathways.conformance.recording_dispatcher import RecordingDispatcher
from tests.model_server.waiting import until

CLIENT = Path(__file__).parents[1] / "roles" / "proxy_client.py"


async def found(python: str) -> dict[str, Any]:
    """Return what the client's program tells, and how requests of each kind are answered."""
    dispatcher = RecordingDispatcher()
    executor = Executor(IslandDevices(jax.devices()))
    dispatcher.island(0).begin([InProcessHost(executor)])
    dispatcher.survey()
    server = GrpcServer(dispatcher.service())
    port = await server.start("127.0.0.1:0", None)
    client = await asyncio.create_subprocess_exec(
        python, str(CLIENT), str(port), "conformance", stdout=subprocess.PIPE
    )
    told, _ = await client.communicate()
    sent = {kind: dict(codes) for kind, codes in dispatcher.answers.items()}
    empty = await answered_when_empty(dispatcher)
    await server.stop()
    return {
        "told": dict(map(json.loads, told.splitlines())),
        "sent": sent,
        "empty": empty,
        "record": msgspec.to_builtins(recorded(dispatcher.offered, sent, executor)),
    }


async def answered_when_empty(dispatcher: RecordingDispatcher) -> dict[str, int]:
    """Return the gRPC code with which a request of each kind without any field is answered."""
    session = dispatcher.open()
    codes: dict[str, int] = {}
    for number, kind in enumerate(REQUESTS, 1):
        dispatcher.answers.clear()
        await dispatcher.serve(session, request_of(kind, number).SerializeToString())
        await until(lambda kind=kind: bool(dispatcher.answers[kind]))
        codes[kind] = next(iter(dispatcher.answers[kind]))
    dispatcher.close(session)
    return codes


def recorded(offered: Any, sent: dict[str, Any], executor: Executor) -> ConformanceRecord:
    speaks = [offered.min_version, offered.max_version, agreed(offered)]
    return ConformanceRecord(
        version("jaxlib"),
        Spoken(*(each.protocol_version for each in speaks)),
        Spoken(*(each.ifrt_serdes_version_number for each in speaks)),
        {kind: Kind(kind in sent, answer_of(kind, executor)) for kind in REQUESTS},
    )


def answer_of(kind: str, executor: Executor) -> str:
    """Return CARRIED_OUT, or the words in which the executor refuses a kind of request."""
    if kind in {"init_request", *executor.kinds}:
        return CARRIED_OUT
    answers: list[Any] = []
    request = request_of(kind, 1)
    executor.execute(1, request, 1, {}, lambda response, _: answers.append(response))
    status = answers[0].response_metadata.status
    return f"{status.code}: {status.message}"


def request_of(kind: str, number: int) -> Any:
    """Return a request without any field of its own."""
    request = IfrtRequest()
    request.request_metadata.op_id = number
    getattr(request, kind).SetInParent()
    return request


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="keep the record of this jaxlib")
    parser.add_argument("--client", default=sys.executable, help="Python that runs the client")
    flags = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    of = asyncio.run(found(flags.client))
    if flags.record:
        keep(msgspec.convert(of["record"], ConformanceRecord))
    sys.stdout.write(json.dumps(of) + "\n")
    sys.stdout.flush()
    os._exit(0)  # threads of the executor may wait


if __name__ == "__main__":
    main()
