"""Makes or lists sets of compiled programs and prints progress."""

from __future__ import annotations

import sys
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from model_server.config import BESIDE_CHECKPOINTS
from model_server.plan.precompile.making import Made, Maker, program_count
from model_server.plan.precompile.subject import Subject
from model_server.programs.manifest import Manifest
from model_server.programs.place import FOLDER, SetFolder, beside, sets_at
from sax.command import printable
from sax.errors import CheckpointError
from sax.format import human_bytes as human


def make_set(subject: Subject, place: str, keep_going: bool) -> bool:
    """Compile and write every program; return False if some did not compile."""
    console = Console(stderr=True)
    tell = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as bars:
        title = f"compiling {subject.title} for {subject.topology}"
        task = bars.add_task(title, total=program_count(subject))

        def told(made: Made) -> None:
            tell(_line(made))
            bars.advance(task)

        maker = Maker(subject, place, told, keep_going=keep_going)
        try:
            manifest = maker.make()
        except CheckpointError as exc:
            hint = "" if "cannot be written" not in exc.text else ": name another place with --to"
            raise CheckpointError(f"{exc.text}{hint}") from exc
    tell(f"{len(manifest.programs)} programs, {human(manifest.size)}, in {maker.folder.url}")
    if failed := len(maker.failures):
        tell(f"{failed} programs did not compile; a server compiles these itself", style="red")
        return False
    tell(_how_to_serve(place, subject))
    return True


def _how_to_serve(place: str, subject: Subject) -> str:
    is_beside = subject.has_checkpoint and place.endswith(FOLDER)
    value = BESIDE_CHECKPOINTS if is_beside else place
    return f"start servers with --programs {value} to use them"


def _line(made: Made) -> str:
    if made.entry is None:
        return f"{made.name}: {made.failure}"
    if made.was_there:
        return f"{made.name}: already there, {human(made.entry.size)}"
    return f"{made.name}: compiled in {made.entry.compile_s:.1f} s, {human(made.entry.size)}"


def list_sets(place: str) -> None:
    """Print the sets at a place or beside a checkpoint. Raises CheckpointError if none are."""
    places = [place, beside(place) or place]
    sets = next((found for each in places if (found := list(sets_at(each)))), [])
    if not sets:
        raise CheckpointError(f"{place} holds no compiled programs, nor does {places[1]}")
    for folder, manifest in sets:
        sys.stdout.write(printable(_described(folder, manifest)) + "\n")


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
