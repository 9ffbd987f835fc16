"""The `run` command."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from sax.cli.commands.chat import converse
from sax.cli.commands.wait import wait_until_ready
from sax.cli.conversation import Conversation
from sax.cli.local.gateway_options import starts_a_gateway
from sax.cli.publication import Publication, absolute_checkpoint
from sax.cli.sampling_options import takes_sampling
from sax.cli.stages import ProgressStage
from sax.cli.terminal import admin_of, async_client_at, client_at
from sax.command import Overrides, Results, check_installed, parse_overrides, say
from sax.config import (
    ADDRESS_VARIABLE,
    ADMIN_PORT,
    ADMIN_STATUS_PORT,
    GATEWAY_PORT,
    GROUP_PORT,
    MODEL_METRICS_PORT,
    MODEL_PORT,
    ROOT_VARIABLE,
)
from sax.errors import (
    AdminUnavailable,
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    SaxError,
    Unavailable,
)
from sax.format import quoted
from sax.names import ModelId, check_checkpoint
from sax.references import parse_reference
from sax.types import ModelSpec, SamplingParams

if TYPE_CHECKING:
    from sax.client import Client

_AUTO = "auto"
_CELL = "test"  # what `sax up` calls a cell

_PORTS = {
    "--admin-port": ADMIN_PORT,
    "--port": GATEWAY_PORT,
    "--model-port": MODEL_PORT,
    "--status-port": ADMIN_STATUS_PORT,
    "--metrics-port": MODEL_METRICS_PORT,
    "--group-port": GROUP_PORT,
}
_LOOK_S = 0.2
_DRAIN_S = 45.0
_LOG_LINES = 8

_ANSWERS_S = 2.0  # a cell that is there


@starts_a_gateway
@takes_sampling(temperature=0.0)
def run(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A GGUF file, a Hugging Face folder, ORG/NAME of a Hugging Face hub, or the name "
            "of a published model.",
        ),
    ],
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="Ask this once and exit.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name to publish a checkpoint by.", show_default="made from the checkpoint's"
        ),
    ] = None,
    overrides: Overrides = None,
    *,
    sampling: SamplingParams,
    gateway_flags: tuple[str, ...],
) -> Results:
    """Chat with a model, from nothing.

    Starts a cell on this machine if none answers, which ends with the chat; fetches and publishes
    the model if it is a checkpoint; and begins a conversation once it is ready. In a cell that was
    there already the model stays published. With --prompt, or a text on stdin, it answers once.

    \b
    Examples:
      sax run HuggingFaceTB/SmolLM2-135M-Instruct
      sax run ./SmolLM2-135M-Instruct.Q4_1.gguf -p "What is the capital of France?"
      sax run HuggingFaceTB/SmolLM2-135M-Instruct < question.txt
    """
    with _some_cell(ctx, gateway_flags) as address, client_at(address) as client:
        ctx.obj = address
        model_id = _ready(ctx, client, model, name, parse_overrides(overrides or ()))
        conversation = Conversation(client, model_id, sampling, system)
        if prompt is None and sys.stdin.isatty():
            converse(conversation)
        else:
            yield from conversation.results([sys.stdin.read() if prompt is None else prompt])


@contextmanager
def _some_cell(ctx: typer.Context, gateway_flags: tuple[str, ...]) -> Generator[str | None]:
    """Give the address of the cell that answers, or of one that was started for this command.

    Raises InvalidRequest for flags of a gateway that is there already.
    """
    given = admin_of(ctx)
    try:
        with client_at(given) as client:
            client.servers(timeout_s=_ANSWERS_S)
    except (AdminUnavailable, DeadlineExceeded):
        if given or os.environ.get(ADDRESS_VARIABLE) or os.environ.get(ROOT_VARIABLE):
            raise  # somebody named a cell, and it is not this one
        check_installed(ctx)
        with own_cell(gateway_flags) as address:
            yield address
        return
    if gateway_flags:
        raise InvalidRequest(
            f"a cell answers already, whose gateway goes on as it is: leave out {gateway_flags[0]}"
        )
    yield given


def _ready(
    ctx: typer.Context, client: Client, model: str, name: str | None, overrides: dict[str, str]
) -> str:
    """Return the id of the model, published and ready."""
    published = client.list_all()
    known = [each.spec for each in published]
    model_id = find_published(model, known)
    if model_id is None:
        wanted = to_publish(model, name, overrides, known)
        model_id = wanted.model_id
        if not is_published(wanted, known):
            client.publish(
                model_id, wanted.model_path, wanted.checkpoint, wanted.replicas, wanted.overrides
            )
            say(f"published {model_id}")
    asleep = any(
        each.spec.model_id == model_id and not each.wanted_replicas for each in published
    )  # until it is asked
    wait_until_ready(ctx, model_id, replicas=0 if asleep else 1)
    return model_id


@contextmanager
def own_cell(gateway_flags: tuple[str, ...] = ()) -> Generator[str]:
    """Run a cell and give the address of its admin server. Raises Unavailable.

    It uses the usual ports where they are free, and keeps nothing.
    """
    folder = Path(tempfile.mkdtemp(prefix="sax-run-"))
    ports = _free_ports()
    flags = [f"{flag}={port}" for flag, port in ports.items()]
    command = (sys.executable, "-m", "sax.cli.local.leash", "sax.cli", "up", f"--dir={folder}")
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen(
            (*command, *flags, *gateway_flags),
            stdin=subprocess.PIPE,  # its end is the end of this process
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for whoever asks, and not for the cell
        )
    address = f"127.0.0.1:{ports['--admin-port']}"
    try:
        asyncio.run(_until_joined(up, address, folder / "up.log"))
        yield address
    finally:
        _end(up)
        shutil.rmtree(folder, ignore_errors=True)


def _free_ports() -> dict[str, int]:
    """Return the usual ports, and others for those that are taken."""
    held: dict[str, socket.socket] = {}
    try:
        for flag, usual in _PORTS.items():
            held[flag] = _bound(usual)
        return {flag: each.getsockname()[1] for flag, each in held.items()}
    finally:
        for each in held.values():
            each.close()


def _bound(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(("127.0.0.1", port))
    except OSError:
        made.bind(("127.0.0.1", 0))
    return made


async def _until_joined(up: subprocess.Popen[bytes], address: str, log: Path) -> None:
    from sax.cli.display import open_display

    async with async_client_at(address) as client:
        with open_display() as display:
            while True:
                display.show([ProgressStage("a cell on this machine", "starting")])
                if up.poll() is not None:
                    raise Unavailable(f"the cell ended at once: {_tail(log)}")
                with suppress(SaxError):
                    if await client.servers(timeout_s=1.0):
                        display.show([ProgressStage("a cell on this machine", "ready")])
                        return
                await asyncio.sleep(_LOOK_S)


def _tail(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").strip().splitlines()[-_LOG_LINES:])


def _end(up: subprocess.Popen[bytes]) -> None:
    """Let the cell drain; end it at once on Ctrl-C, or if it does not."""
    assert up.stdin is not None
    with closing(up.stdin):
        pass
    try:
        if up.poll() is None:
            say("stopping the cell")
        up.wait(_DRAIN_S)
    except BaseException as exc:
        up.kill()  # its processes see that, and end
        up.wait()
        if not isinstance(exc, subprocess.TimeoutExpired | KeyboardInterrupt):
            raise


def find_published(text: str, known: Sequence[ModelSpec]) -> str | None:
    """Return the published model that a whole name or its last part means."""
    names = [spec.model_id for spec in known]
    ends = [name for name in names if name.rpartition("/")[2] == text]
    if text in names:
        return text
    return ends[0] if len(ends) == 1 else None


def to_publish(
    text: str, name: str | None, overrides: Mapping[str, str], known: Sequence[ModelSpec]
) -> Publication:
    """Return what to publish for a checkpoint. Raises InvalidRequest, ModelNotFound."""
    reference = parse_reference(text)
    if text.startswith("/sax/") or (reference is None and not _may_exist(text)):
        raise ModelNotFound(
            f"{quoted(text)} is no published model, and no checkpoint: give a GGUF file, a Hugging "
            "Face folder, ORG/NAME of a hub, or a name that `sax ls` lists",
            param="model",
        )
    cells = {ModelId.parse(spec.model_id).cell for spec in known}
    model_id = ModelId.parse(f"/sax/{min(cells, default=_CELL)}/{name or model_name(text)}")
    checkpoint = check_checkpoint(
        absolute_checkpoint(text) if reference is None else str(reference)
    )
    return Publication(str(model_id), _AUTO, checkpoint, 1, dict(overrides))


def is_published(wanted: Publication, known: Sequence[ModelSpec]) -> bool:
    """Return True if the model is there already.

    Raises InvalidRequest if its name stands for another checkpoint.
    """
    found = next((spec for spec in known if spec.model_id == wanted.model_id), None)
    if found is None:
        return False
    if _same(found.checkpoint, wanted.checkpoint) and found.overrides == wanted.overrides:
        return True
    raise InvalidRequest(
        f"{wanted.model_id} is published from {found.checkpoint} already: ask that one by its "
        "name, or give this one another with --name",
        param="name",
    )


def model_name(checkpoint: str) -> str:
    """Return a name for a checkpoint's model, as smollm2-135m-q4_1 for "SmolLM2-135M.Q4_1.gguf"."""
    if (reference := parse_reference(checkpoint)) is not None:
        text = reference.repo.rpartition("/")[2]
    else:
        text = PurePosixPath(checkpoint.rstrip("/")).name.removesuffix(".gguf")
        text = re.sub(r"-\d{5}-of-\d{5}$", "", text)  # one part of several
    word = re.sub(r"[^a-z0-9_-]+", "-", text.lower())
    return re.sub(r"^[^a-z]+", "", word).strip("-") or "model"


def _may_exist(text: str) -> bool:
    return "://" in text or os.path.exists(os.path.expanduser(text))


def _same(published: str, wanted: str) -> bool:
    """Return True for equal checkpoints; a commit of a hub's default branch counts."""
    one, other = parse_reference(published), parse_reference(wanted)
    if one is not None and other is not None and not other.revision:
        return one.repo == other.repo and other.file in ("", one.file)
    return published == wanted
