"""Compiles a model's programs ahead of serving, for a TPU slice elsewhere or for CPUs like these.

    python -m model_server.precompile MODEL [KEY=JSON ...] --topology v5e:4x8 [-- FLAGS]
    python -m model_server.precompile --list PLACE

FLAGS are the flags the model server will be started with. Exit status: 0 all programs compiled,
1 some could not be compiled, 2 bad arguments. The only module of the command that uses the
terminal or the environment; jax is imported once that is set.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from model_server.config import BESIDE_CHECKPOINTS, ModelServerConfig
from model_server.flags import make_config
from sax.cli.publication import parse_overrides
from sax.errors import CheckpointError, InvalidRequest, ModelPathNotFound, SaxError
from sax.format import human_bytes as human

if TYPE_CHECKING:
    from model_server.plan.precompile.making import Made
    from model_server.plan.precompile.subject import Subject
    from model_server.programs.manifest import Manifest
    from model_server.programs.place import SetFolder

_WRONG = (InvalidRequest, ModelPathNotFound)  # bad arguments: exit status 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    parser = _parser()
    options = parser.parse_args(words[:end])
    console = Console(stderr=True)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        if options.list is not None:
            return _list(options.list, Console())
        if not options.model or not options.topology:
            parser.error("give MODEL and --topology, or --list PLACE")
        return _make(options, make_config(words[end + 1 :]), console)
    except SaxError as exc:
        console.print(exc.text, style="red", markup=False, highlight=False, soft_wrap=True)
        return 2 if isinstance(exc, _WRONG) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m model_server.precompile",
        description="Compiles every program of a model ahead of the servers that will run it.",
        epilog="After -- come the flags that the model server will be started with.",
    )
    parser.add_argument(
        "model", nargs="?", help="a checkpoint, a model path, a config.json or a well-known model"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=JSON", help="as in a publish")
    parser.add_argument("--topology", help="v5e:4x8, v6e:2x2, ..., or cpu, cpu:2, ...")
    parser.add_argument("--to", metavar="PLACE", help="folder, gs:// or s3:// location to write to")
    parser.add_argument("--path", help="model path of a checkpoint (default: from config.json)")
    parser.add_argument(
        "--keep-going", action="store_true", help="go on after a program that does not compile"
    )
    parser.add_argument("--list", metavar="PLACE", help="list the program sets there")
    return parser


def _make(options: argparse.Namespace, config: ModelServerConfig, console: Console) -> int:
    from model_server.plan.precompile.subject import cpu_devices

    overrides = parse_overrides(options.overrides)
    devices = cpu_devices(options.topology)
    if devices is not None and devices > 1:
        config = replace(config, cpu_devices=devices)
    set_environment(config)
    from model_server.plan.precompile.subject import subject_of
    from model_server.process.start import import_modules

    import_modules(config.imports)
    subject = subject_of(options.model, overrides, options.topology, config, options.path)
    return _write(subject, _place(options, subject), options.keep_going, console)


def set_environment(config: ModelServerConfig) -> None:
    """Set variables as a server would, but so that this process only compiles; call before jax."""
    for name, value in config.environment().items():
        os.environ.setdefault(name, value)
    os.environ["JAX_PLATFORMS"] = "cpu"  # leave a local TPU to its model server
    # XLA:CPU cannot serialise a program that it read from this cache.
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"


def _place(options: argparse.Namespace, subject: Subject) -> str:
    from model_server.programs.place import beside

    own = beside(options.model) if subject.has_checkpoint else None
    if place := options.to or own:
        return place if "://" in place else os.path.abspath(os.path.expanduser(place))
    raise InvalidRequest(
        f"{subject.title} has no checkpoint to write programs beside: say where to write them, as "
        "in --to gs://BUCKET/programs",
        param="to",
    )


def _write(subject: Subject, place: str, keep_going: bool, console: Console) -> int:
    from model_server.plan.precompile.making import Maker, program_count

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bars(*columns, TimeElapsedColumn(), console=console) as bars:
        title = f"compiling {subject.title} for {subject.topology}"
        task = bars.add_task(title, total=program_count(subject))

        def told(made: Made) -> None:
            console.print(_line(made), markup=False, highlight=False, soft_wrap=True)
            bars.advance(task)

        maker = Maker(subject, place, told, keep_going=keep_going)
        try:
            manifest = maker.make()
        except CheckpointError as exc:
            hint = "" if "cannot be written" not in exc.text else ": name another place with --to"
            raise CheckpointError(f"{exc.text}{hint}") from exc
    total = f"{len(manifest.programs)} programs, {human(manifest.size)}, in {maker.folder.url}"
    console.print(total, markup=False, highlight=False, soft_wrap=True)
    if maker.failures:
        failed = f"{len(maker.failures)} programs did not compile; a server compiles these itself"
        console.print(failed, style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    console.print(_how_to_serve(place, subject), markup=False, highlight=False, soft_wrap=True)
    return 0


def _how_to_serve(place: str, subject: Subject) -> str:
    from model_server.programs.place import FOLDER

    is_beside = subject.has_checkpoint and place.endswith(FOLDER)
    value = BESIDE_CHECKPOINTS if is_beside else place
    return f"start servers with --programs {value} to use them"


def _line(made: Made) -> str:
    if made.entry is None:
        return f"{made.name}: {made.failure}"
    if made.was_there:
        return f"{made.name}: already there, {human(made.entry.size)}"
    return f"{made.name}: compiled in {made.entry.compile_s:.1f} s, {human(made.entry.size)}"


def _list(place: str, console: Console) -> int:
    from model_server.programs.place import beside, sets_at

    places = [place, beside(place) or place]
    sets = next((found for each in places if (found := list(sets_at(each)))), [])
    if not sets:
        raise CheckpointError(f"{place} holds no compiled programs, nor does {places[1]}")
    for folder, manifest in sets:
        console.print(_described(folder, manifest), markup=False, highlight=False, soft_wrap=True)
    return 0


def _described(folder: SetFolder, manifest: Manifest) -> str:
    keys, limits = manifest.keys, manifest.limits
    libtpu = f", libtpu {keys.libtpu}" if keys.libtpu else ""
    return "\n  ".join(
        (
            folder.url,
            " ".join((manifest.model, *(f"{k}={v}" for k, v in manifest.overrides.items()))),
            f"{manifest.topology}: mesh {keys.mesh}, hosts {keys.hosts}, jax {keys.jax}{libtpu}",
            f"{limits.slots} slots, {limits.pages} KV pages of {limits.page_size} tokens",
            f"{len(manifest.programs)} programs, {human(manifest.size)}, made {manifest.made_at} "
            f"by {manifest.made_by} with sax {manifest.sax}",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
