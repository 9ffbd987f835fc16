"""Makes a Hugging Face folder from a GGUF file, or the other way round.

    python -m model_server.checkpoints.convert SOURCE DESTINATION [--dtype bfloat16]

A destination that ends in .gguf becomes a GGUF file, any other a folder. By default nothing is
lost: every tensor keeps the number format it is read in (quantised tensors are read as float32).
The result appears under its name only when it is complete.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from model_server.checkpoints.cast import DTYPES
from model_server.checkpoints.checkpoint import Checkpoint, open_checkpoint
from model_server.checkpoints.folder_writer import write_folder
from model_server.checkpoints.gguf_writer import write_gguf
from sax.errors import CheckpointError, SaxError
from sax.types import Progress

SAME = "same"


def convert(
    source: str,
    destination: str,
    *,
    dtype: str = SAME,
    report: Callable[[Progress], None] = lambda progress: None,
) -> None:
    """Raises CheckpointError if the source is no good or the destination is taken."""
    place = Path(destination).expanduser()
    if place.exists() or place.is_symlink():
        raise CheckpointError(f"{place} is already there; remove it or choose another name")
    checkpoint = open_checkpoint(source)
    try:
        _write_then_rename(checkpoint, place, dtype, report)
    except OSError as exc:
        raise CheckpointError(f"{place} cannot be written: {exc.strerror or exc}") from exc
    finally:
        checkpoint.close()


def _write_then_rename(
    checkpoint: Checkpoint, place: Path, dtype: str, report: Callable[[Progress], None]
) -> None:
    dtypes = {n: checkpoint.dtype(n) if dtype == SAME else dtype for n in checkpoint.names()}
    place.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        unfinished = work / place.name
        if place.suffix == ".gguf":
            write_gguf(checkpoint, unfinished, dtypes, report)
        else:
            unfinished.mkdir()
            write_folder(checkpoint, unfinished, dtypes, report)
        unfinished.rename(place)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m model_server.checkpoints.convert",
        description="Makes a Hugging Face folder from a GGUF file, or a GGUF file from a folder.",
    )
    parser.add_argument("source", help="a GGUF file or a Hugging Face folder")
    parser.add_argument("destination", help="NAME.gguf for a GGUF file, any other name: a folder")
    parser.add_argument(
        "--dtype",
        choices=[SAME, *DTYPES],
        default=SAME,
        help="number format of the tensors; same (the default) loses nothing, "
        "bfloat16 halves what was quantised or float32",
    )
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    try:
        _convert_with_bar(options.source, options.destination, options.dtype, console)
    except SaxError as exc:
        console.print(exc.text, style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    return 0


def _convert_with_bar(source: str, destination: str, dtype: str, console: Console) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console) as bars:
        task = bars.add_task("reading", total=None)

        def report(progress: Progress) -> None:
            text = f"{progress.phase} {progress.unit}"
            bars.update(task, description=text, completed=progress.done, total=progress.total)

        convert(source, destination, dtype=dtype, report=report)


if __name__ == "__main__":
    sys.exit(main())
