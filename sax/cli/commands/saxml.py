"""Commands for those who come from Saxml: `saxutil` verbs with another name here, and `saxml-shim`.

Most verbs are hidden from `sax --help`; scripts run `saxutil` itself, whose flags are Saxml's
(`sax.cli.saxutil`). The shim gives programs Saxml's import paths for our calls, in a folder of
packages:

    from saxml.client.python import sax
    from saxml.protobuf import multimodal_pb2
    from pybind11_abseil.status import StatusNotOk

It is not part of the installation: two programs of one environment may want different `saxml`
packages.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from sax.cli.commands.requests import embed, generate, gradient
from sax.cli.commands.wait import wait_until_ready
from sax.cli.model_argument import Model
from sax.cli.publication import absolute_checkpoint
from sax.cli.saxutil.unsupported import CREATE, DELETE, EXPORT, SAVE, unsupported
from sax.cli.terminal import open_client
from sax.command import CommandResult, Results, Wait
from sax.errors import InvalidRequest

Words = Annotated[list[str] | None, typer.Argument(metavar="...")]


def update_checkpoint(
    ctx: typer.Context,
    model: Model,
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="New checkpoint.")],
    wait: Wait = False,
) -> Results:
    """Change the checkpoint of a published model.

    Replicas switch over one at a time; `sax rollback` undoes the change.

    \b
    Examples:
      sax update-checkpoint /sax/test/smollm2 /models/smollm2-v2 --wait
      sax update-checkpoint /sax/test/smollm2 None
    """
    path = absolute_checkpoint(checkpoint)
    with open_client(ctx) as client:
        client.update(model, checkpoint=path)
    yield CommandResult({"model": model, "checkpoint": path}, f"updated {model}")
    if wait:
        wait_until_ready(ctx, model)


def score(
    ctx: typer.Context,
    model: Model,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Text before each suffix.")],
    suffixes: Annotated[
        list[str], typer.Argument(metavar="SUFFIX...", help="Texts to score; - reads stdin.")
    ],
) -> CommandResult:
    """Score how likely each suffix is after a prefix.

    Prints the log-probability of each suffix, in order. A model with a chat template reads the
    prefix as a user's message and the suffix as the assistant's answer, as Saxml's Generate does;
    publish it with QUERY_FORMAT="raw" to score bare text.

    \b
    Examples:
      sax score /sax/test/smollm2 "What is the capital of France?" "It is Paris." "It is Rome."
      sax lm.score /sax/test/raw "Two and two are" " four" --json
    """
    texts = [sys.stdin.read() if text == "-" else text for text in suffixes]
    with open_client(ctx) as client:
        scores = client.score(model, prefix, texts)
    return CommandResult(scores, "\n".join(f"{each:.6f}" for each in scores))


def create(ctx: typer.Context, words: Words = None) -> NoReturn:
    """Not supported: a cell exists as soon as its admin server runs.

    \b
    Example:
      python -m admin_server --sax_cell=/sax/test --fs_root=/var/sax
    """
    raise unsupported(CREATE)


def delete(ctx: typer.Context, words: Words = None) -> NoReturn:
    """Not supported, so that nobody deletes a cell by mistake.

    \b
    Example:
      sax unpublish /sax/test/smollm2
    """
    raise unsupported(DELETE)


def export(ctx: typer.Context, words: Words = None) -> NoReturn:
    """Not supported: `saxutil export` writes a program and weights.

    \b
    Example:
      sax convert MODEL.gguf FOLDER
    """
    raise unsupported(EXPORT)


def save(ctx: typer.Context, words: Words = None) -> NoReturn:
    """Not supported: `saxutil save` writes the checkpoint of a loaded model.

    \b
    Example:
      sax versions /sax/test/smollm2
    """
    raise unsupported(SAVE)


def register(app: typer.Typer) -> None:
    app.command("update-checkpoint")(update_checkpoint)
    app.command("score")(score)
    aliases = {
        "update_checkpoint": update_checkpoint,
        "lm.generate": generate,
        "lm.score": score,
        "lm.embed": embed,
        "lm.gradient": gradient,
    }
    for name, command in aliases.items():
        app.command(name, hidden=True)(command)
    loose = {"allow_extra_args": True, "ignore_unknown_options": True}
    for command in (create, delete, export, save):
        app.command(command.__name__, hidden=True, context_settings=loose)(command)


_MARK = "# Saxml's import paths for `sax`; `sax saxml-shim --remove` takes them away.\n"
_STATUS = "pybind11_abseil"
_PROTOS = ("admin", "audio", "common", "custom", "lm", "modelet", "multimodal", "vision")
_NO_SERVICES = ("common",)

_CLIENT = """\
import sys

import sax

sys.modules[f"{__name__}.sax"] = sax
"""
_PROTOBUF = """\
import importlib
import sys

for _name in {names}:
    _module = importlib.import_module(f"sax.proto.{{_name}}")
    globals()[_name] = sys.modules[f"{{__name__}}.{{_name}}"] = _module
"""
_FILES = {
    "saxml/__init__.py": "",
    "saxml/client/__init__.py": "",
    "saxml/client/python/__init__.py": _CLIENT,
    "saxml/protobuf/__init__.py": _PROTOBUF.format(
        names=tuple(
            f"{name}_{kind}"
            for name in _PROTOS
            for kind in ("pb2", "pb2_grpc")
            if not (name in _NO_SERVICES and kind == "pb2_grpc")
        )
    ),
    f"{_STATUS}/__init__.py": "",
    f"{_STATUS}/status.py": "from sax.status import Status, StatusCode, StatusNotOk\n",
}


def saxml_shim(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder of packages; default: where this Python's packages are."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the packages away.")] = False,
) -> CommandResult:
    """Let `from saxml.client.python import sax` find the calls of this package.

    Writes a small package `saxml`, and `pybind11_abseil` with StatusNotOk if there is none.
    Programs written for Saxml's Python client then run unchanged.

    \b
    Examples:
      sax saxml-shim
      sax saxml-shim ./packages && PYTHONPATH=./packages python program.py
      sax saxml-shim --remove
    """
    place = default_folder() if folder is None else folder
    done = "removed" if remove else "wrote"
    packages = [str(each) for each in (remove_shim(place) if remove else install_shim(place))]
    lines = "\n".join(f"{done} {package}" for package in packages)
    return CommandResult({done: packages}, lines or "there is nothing to remove")


def default_folder() -> Path:
    """Return where this interpreter's packages are."""
    return Path(sysconfig.get_path("purelib"))


def install_shim(folder: Path) -> list[Path]:
    """Write the packages and return their folders. Writing again changes nothing.

    A pybind11_abseil of its own is left alone. Raises InvalidRequest if the folder has another
    `saxml`, or cannot be written.
    """
    if _is_foreign(folder / "saxml"):
        raise InvalidRequest(
            f"{folder / 'saxml'} is another package, perhaps Saxml itself: choose another folder, "
            "and put it before that one in PYTHONPATH",
            param="folder",
        )
    wanted = [name for name in ("saxml", _STATUS) if not _is_foreign(folder / name)]
    try:
        for name, text in _FILES.items():
            if name.partition("/")[0] in wanted:
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(_MARK + text)
    except OSError as exc:
        raise InvalidRequest(f"{folder} cannot be written: {exc}", param="folder") from exc
    return [folder / name for name in wanted]


def remove_shim(folder: Path) -> list[Path]:
    """Remove the packages that `install` wrote, and return their folders."""
    ours = [folder / name for name in ("saxml", _STATUS) if _is_ours(folder / name)]
    for package in ours:
        shutil.rmtree(package)
    return ours


def _is_ours(package: Path) -> bool:
    first = package / "__init__.py"
    return first.is_file() and first.read_text().startswith(_MARK)


def _is_foreign(package: Path) -> bool:
    return package.exists() and not _is_ours(package)
