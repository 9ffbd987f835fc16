"""Which loads keep their programs and weights for the next start, where, and under which key.

The key is known without tracing any. It holds more than what can change the programs: a key that
differs costs a start some seconds, one that does not tell two apart would give wrong answers.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.roots import local_place
from model_server.checkpoints.split_name import part_names
from model_server.config import ModelServerConfig
from model_server.engine.buckets import Bucket
from model_server.engine.compiling import Programs
from model_server.engine.step_program import StepProgram
from model_server.engine.versions import sources_changed, versions
from model_server.islands import is_proxied
from model_server.kernels.cpu import native
from model_server.loading.deployment import Deployment
from model_server.loading.weights import place
from model_server.models.weights.sharding import Layout
from model_server.models.weights.weight import Declaration
from model_server.programs.last_start import (
    WEIGHTS_SUFFIX,
    file_of,
    map_weights,
    mark_used,
    read_kept,
    write_kept,
    write_weights,
)
from model_server.programs.manifest import flat
from model_server.programs.start_programs import StartPrograms
from model_server.programs.surroundings import digest_of, keys_of
from model_server.text.chat_template import renderer
from sax.errors import CheckpointError
from sax.types import ModelSpec

logger = logging.getLogger(__name__)

_FOLDER = "starts"
_MOST_TEMPLATES = 32
_LIBRARIES = ("flax", "numpy", "ml_dtypes")  # beside jax, that tracing runs through
_TRACED = ("torch", "transformers")  # whose code some models are traced from, where installed
_VARIABLES = ("NPROC", "SAX_CPU_KERNELS", "SAX_CPU_LIBRARY", "SAX_CPU_THREADS")


def start_programs(
    spec: ModelSpec,
    checkpoint: Checkpoint | None,
    deployment: Deployment,
    config: ModelServerConfig,
    programs: Programs,
) -> StartPrograms | None:
    """Return the source of the programs of a model's steps; None: they are not kept.

    programs: what compiles those that are not kept.
    """
    folder = _folder(config)
    if folder is None or not _is_alone(deployment):
        return None
    if sources_changed():
        logger.warning(
            "%s: no programs are kept for the next start: sax's sources have changed since this "
            "process began; restart it",
            spec.model_id,
        )
        return None
    program, buckets = deployment.program, deployment.buckets
    key = start_key(
        spec,
        None if checkpoint is None else checkpoint.config,
        deployment.layout,
        program,
        deployment.blueprint.declarations,
        buckets,
    )
    path = file_of(folder, key.model)
    names = program.programs(buckets)
    return StartPrograms(path, key.whole, names, programs, spec.model_id)


def _folder(config: ModelServerConfig) -> Path | None:
    """Return where programs are kept: beside jax's compile cache."""
    place = config.jax_cache_dir
    # Sources of imported modules are not part of the key.
    if not config.keep_programs or not place or "://" in place or config.imports:
        return None
    return Path(place) / _FOLDER


def _is_alone(deployment: Deployment) -> bool:
    """Return True for a whole language model on CPUs of this process.

    Accelerators and several hosts have sets that are compiled ahead, and hosts that send programs.
    What is beside the model's own programs, a draft model or an encoder, may change them.
    """
    here = deployment.layout.platform == "cpu" and jax.process_count() == 1 and not is_proxied()
    plain = deployment.draft is None and deployment.encoder is None and deployment.stage is None
    return here and plain


class StartWeights:
    """The weights of a model's last start, mapped, or those that a load reads, kept for the next.

    Only weights that a checkpoint on this machine holds and one device takes.
    """

    def __init__(self, source: Path, key: str, path: Path, model: str) -> None:
        """key: of what the weights depend on but the files at `source`. model: for the log."""
        self._source = source
        self._key = key
        self._path = path
        self._model = model
        self._was = self._whole_key()
        self._are_kept = False

    def leaves(
        self, layout: Layout, declared: Sequence[Declaration], read: Callable[[], list[jax.Array]]
    ) -> list[jax.Array]:
        """Return the leaves of the declared weights; `read` reads them from the checkpoint."""
        arrays = self._mapped()
        leaves = [leaf for weight in declared for leaf in weight.leaves]
        if arrays is None or [each.shape for each in arrays] != [each.shape for each in leaves]:
            return read()
        self._are_kept = True
        mark_used(self._path)
        logger.info("%s: its weights are mapped from %s", self._model, self._path)
        pairs = zip(leaves, arrays, strict=True)
        return [place(leaf, layout, lambda _, held=held: held) for leaf, held in pairs]

    def keep(self, leaves: Sequence[jax.Array]) -> None:
        """Keep what was read for the next start, unless the files have changed meanwhile."""
        if self._are_kept or self._whole_key() != self._was:
            return
        try:
            if not write_weights(self._path, self._was, [np.asarray(each) for each in leaves]):
                logger.info("%s: its weights are not kept: the disk is nearly full", self._model)
        except (CheckpointError, OSError) as exc:
            logger.warning("%s: its weights are not kept: %s", self._model, exc)

    def _mapped(self) -> list[np.ndarray] | None:
        try:
            return map_weights(self._path, self._was)
        except CheckpointError as exc:
            logger.warning("%s: reading its weights: %s", self._model, exc.text)
            return None

    def _whole_key(self) -> str:
        return _digest((self._key, *_files(self._source)))


def start_weights(
    spec: ModelSpec, checkpoint: Checkpoint | None, deployment: Deployment, start: StartPrograms
) -> StartWeights | None:
    """Return the source of a model's weights; None: they are not kept.

    start: that of its programs, which depend on whatever changes how weights lie in memory.
    """
    source = local_place(spec.checkpoint)
    adapts = any(each.low_rank is not None for each in deployment.blueprint.declarations)
    if checkpoint is None or source is None or adapts or deployment.layout.mesh.size > 1:
        return None
    return StartWeights(source, start.key, start.path.with_suffix(WEIGHTS_SUFFIX), spec.model_id)


def _files(source: Path) -> Iterator[str]:
    """Yield what tells each file of a checkpoint from one that was written later."""
    parts = part_names(source.name) or [source.name]
    paths = source.rglob("*") if source.is_dir() else map(source.with_name, parts)
    for path in sorted(paths):
        if path.is_file():
            at = path.stat()
            yield f"{path} {at.st_dev} {at.st_ino} {at.st_size} {at.st_mtime_ns} {at.st_ctime_ns}"


class KeptTemplates:
    """Chat templates that earlier starts tried out: a file for each, named by what it depends on.

    To try one out takes a process, which imports Jinja: a fifth of a second.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: bytes) -> bytes | None:
        path = self._path(key)
        try:
            found = read_kept(path)
        except CheckpointError as exc:
            logger.warning("trying a chat template out: %s", exc.text)
            return None
        if found is None:
            return None
        mark_used(path)
        return bytes(found)

    def keep(self, key: bytes, forms: bytes) -> None:
        try:
            write_kept(self._path(key), forms, _MOST_TEMPLATES)
        except (CheckpointError, OSError) as exc:
            logger.warning("a chat template will be tried out again: %s", exc)

    def _path(self, key: bytes) -> Path:
        depends = (key.hex(), json.dumps(versions(), sort_keys=True), _version("jinja2"))
        return self._folder / f"{_digest(depends)[:24]}.template"


def keep_templates(config: ModelServerConfig) -> None:
    """Let starts with these flags believe what earlier ones found of chat templates."""
    folder = _folder(config)
    renderer().tried = None if folder is None else KeptTemplates(folder)


class StartKey(NamedTuple):
    model: str  # what tells a model, with its limits, from others
    whole: str  # the same, with the versions, the machine and the settings that compile it


def start_key(
    spec: ModelSpec,
    config: Mapping[str, Any] | None,
    layout: Layout,
    program: StepProgram,
    weights: Sequence[Declaration],
    buckets: Sequence[Bucket],
) -> StartKey:
    """config: of the checkpoint; None: random weights. weights: as the model declares them."""
    model = _digest(
        (
            spec.model_path,
            json.dumps(dict(spec.overrides), sort_keys=True),
            json.dumps(config and dict(config), sort_keys=True, default=repr),
            json.dumps(flat(program.limits), sort_keys=True, default=repr),
            *map(str, buckets),
            *map(_told, weights),
            digest_of(program.leaves),
            digest_of(jax.tree.leaves((program.pages, program.state))),
            repr(layout.rules),
        )
    )
    return StartKey(model[:24], _digest((model, *_surroundings(layout))))


def _told(weight: Declaration) -> str:
    form = weight.packing, weight.is_tiled, weight.low_rank is None
    return f"{weight.path} {weight.shape} {jnp.dtype(weight.dtype)} {weight.axes} {form}"


def _surroundings(layout: Layout) -> Iterable[str]:
    """Yield what programs depend on beside the model: a stable text for each."""
    yield json.dumps(versions(), sort_keys=True)
    yield " ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    yield " ".join(f"{name} {_version(name)}" for name in _TRACED)
    yield repr(keys_of(layout))
    yield native.program_key()
    yield f"{_cores()} cores"  # XLA divides what a program does over them
    yield _processor()
    for name in _VARIABLES:
        yield f"{name}={os.environ.get(name)}"
    for name, value in sorted(jax.config.values.items()):
        if "cache" not in name:  # where programs are found is not what they are
            yield f"{name}={value}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the processor, by which the seconds of steps differ; "": unknown."""
    with suppress(OSError):
        names = (line for line in cpuinfo.read_text().splitlines() if line.startswith("model name"))
        return next(names, "")
    return ""


def _digest(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)} {part}\n".encode())
    return digest.hexdigest()
