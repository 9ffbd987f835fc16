"""Writes a checkpoint with packed weights, rounded so that a text of the user's changes little.

The folder has the format `pack-quantized` of compressed-tensors, which transformers opens, too.
A model server reads it with QUANTIZE "stored", and multiplies by what is measured here: the
perplexity of a text, and how far its next tokens are from those of the weights as they were.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from model_server.checkpoints.cast import DTYPES
from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.hub.fetching import local_copy
from model_server.checkpoints.huggingface.packed_writer import (
    PackedForm,
    PackedTensors,
    quantization_config,
)
from model_server.checkpoints.huggingface.safetensors_writer import MAX_SHARD, write_safetensors
from model_server.checkpoints.huggingface.sentence_transformers import copy_sentence_settings
from model_server.checkpoints.media_part import text_alone
from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.writing import check_absent, quiet, write_beside, write_then_rename
from model_server.models.recipe import AUTO, Recipe
from model_server.models.registry import make_recipe
from model_server.plan.quantize.calibration import (
    METHODS,
    NEAREST,
    Calibration,
    Findings,
    Rows,
    embedded_rows,
)
from model_server.plan.quantize.packable import packable
from model_server.plan.quantize.rounding import Grid
from model_server.plan.quantize.segments import SegmentedModel, run
from sax.errors import CheckpointError, InvalidRequest
from sax.format import count, human_bytes
from sax.types import Progress

_ROWS = 128  # whose logits are in memory at once


@dataclass(frozen=True, slots=True)
class Quality:
    """What a model makes of a text."""

    perplexity: float
    divergence: float  # mean Kullback-Leibler divergence of the next token from the first's, nats
    same: float  # share of the places where both find the same token most likely


def compare(
    models: Mapping[str, SegmentedModel],
    tokens: np.ndarray,  # i32[N, T]
    work: Path,
    report: Callable[[Progress], None],
) -> dict[str, Quality]:
    """Return the quality of each model by its name; the first is what others are compared with.

    work: a folder for what the layers make of the text.
    """
    rows = {
        name: embedded_rows(model, tokens, work / f"{number}.rows")
        for number, (name, model) in enumerate(models.items())
    }
    stages = next(iter(models.values())).stages
    for stage in stages:
        report(Progress("comparing", stage.first, stages[-1].end, "layers"))
        for name, model in models.items():
            segment = model.segment(stage)
            for which in rows[name].parts():
                made = run(segment, rows[name].part(which), rows[name].inputs(which))
                rows[name].put(which, made)
    report(Progress("comparing", stages[-1].end, stages[-1].end, "layers"))
    return _qualities(models, rows, tokens)


def _qualities(
    models: Mapping[str, SegmentedModel], rows: Mapping[str, Rows], tokens: np.ndarray
) -> dict[str, Quality]:
    parts: dict[str, list[np.ndarray]] = {name: [] for name in models}
    for number, text in enumerate(tokens):
        which = slice(number, number + 1)
        x = {name: held.part(which) for name, held in rows.items()}
        for at in range(0, len(text), _ROWS):
            end = min(at + _ROWS, len(text))
            found = {name: _log_probs(models[name], x[name][at:end]) for name in models}
            exact = next(iter(found.values()))
            for name, got in found.items():
                parts[name].append(_sums(exact, got, text[at + 1 : end + 1]))
    return {name: _quality(sums) for name, sums in parts.items()}


def _log_probs(model: SegmentedModel, x: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(model.logits(x).astype(jnp.float32), axis=-1)


def _sums(exact: jax.Array, got: jax.Array, following: np.ndarray) -> np.ndarray:
    """f64[5]: surprise, tokens that follow, divergence, same tokens, places; summed."""
    divergence = jnp.sum(jnp.exp(exact) * (exact - got))
    same = jnp.sum(jnp.argmax(exact, -1) == jnp.argmax(got, -1))
    surprise = -jnp.sum(got[np.arange(len(following)), following])
    return np.asarray([surprise, len(following), divergence, same, len(got)], np.float64)


def _quality(sums: Sequence[np.ndarray]) -> Quality:
    surprise, following, divergence, same, places = np.sum(sums, axis=0)
    return Quality(float(np.exp(surprise / following)), divergence / places, same / places)


BITS = (4, 8)
SOURCE, WRITTEN = "bfloat16", "written"  # models that are compared
_LENGTH = 512  # tokens that are read together
_HELD_OUT = 8  # texts of that length to compare with, at most
_SHARE = 8  # of the text is held out: one in so many
_LEAST = 8  # texts, at least
_DIGITS = re.compile(r"(?<=\.)\d+(?=\.)")

Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeRequest:
    """What to write."""

    source: str
    destination: str
    text: str | None  # None: only for the method "nearest", and nothing is compared
    form: PackedForm
    method: str
    tokens: int  # of the text to calibrate with, at most
    max_shard: int = MAX_SHARD


@dataclass(frozen=True, slots=True)
class QuantizeOutcome:
    """What was written."""

    findings: Findings
    left: dict[str, int]  # matrices that are not packed: patterns of names, and how many
    bytes: dict[str, int]  # of the tensors: SOURCE, and as WRITTEN
    quality: dict[str, Quality]  # of held-out text; {}: none was given
    tokens: int  # calibrated with
    held_out: int  # tokens that were compared

    def as_text(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        before, after = (human_bytes(self.bytes[name]) for name in (SOURCE, WRITTEN))
        yield f"{count(len(self.findings.packed), 'tensor')} packed: {after}, {before} in {SOURCE}"
        for name, number in self.left.items():
            yield f"left in the source's form: {name}" + (f" ({number})" if number > 1 else "")
        for path, number in self.findings.unreached.items():
            yield (
                f"{path}: {count(number, 'expert')} saw too little of the text, and were rounded "
                "for what all experts of the layer saw"
            )
        for path in self.findings.unseen:
            yield f"{path}: the text did not reach it; rounded to the nearest"
        for path in self.findings.unusable:
            yield f"{path}: what it saw is not finite; rounded to the nearest"
        if self.quality:
            yield f"{self.held_out} tokens at the end of the text, which were not used:"
            yield f"{'':<24}{'perplexity':>12}{'KL (nats)':>12}{'same token':>12}"
        for name, found in self.quality.items():
            far = "" if name == SOURCE else f"{found.divergence:>12.4f}{found.same:>12.1%}"
            yield f"{name:<24}{found.perplexity:>12.2f}{far}"


@dataclass(frozen=True, slots=True)
class CutText:
    """A text cut into inputs of one length."""

    calibration: np.ndarray  # i32[N, T]
    held_out: np.ndarray  # i32[M, T]: the end of the text


def quantize(asked: QuantizeRequest, report: Report = quiet) -> QuantizeOutcome:
    """Write the folder.

    Raises InvalidRequest if what is asked does not fit the model or the text is too short, and
    CheckpointError if the source is at fault or the destination exists.
    """
    _check(asked)
    place = Path(asked.destination).expanduser()
    check_absent(place)
    with (
        closing(open_checkpoint(local_copy(asked.source, report))) as opened,
        tempfile.TemporaryDirectory(prefix="sax-quantize-", dir=_near(place)) as work,
    ):
        return _Quantizing(asked, text_alone(opened), place, Path(work), report).outcome()


def _check(asked: QuantizeRequest) -> None:
    if asked.method not in METHODS:
        raise InvalidRequest(f"--method {asked.method}: choose from {', '.join(METHODS)}")
    if asked.form.bits not in BITS:
        raise InvalidRequest(f"--bits {asked.form.bits}: choose from {', '.join(map(str, BITS))}")
    if asked.form.dtype not in DTYPES:
        raise InvalidRequest(f"--dtype {asked.form.dtype}: choose from {', '.join(DTYPES)}")
    if asked.form.group is not None and asked.form.group < 1:
        raise InvalidRequest(f"--group {asked.form.group}: give columns, or 0 for a scale per row")
    if asked.tokens < 1:
        raise InvalidRequest(f"--tokens {asked.tokens}: give a number above 0")
    if asked.text is None and asked.method != NEAREST:
        raise InvalidRequest(
            f"the method {asked.method} needs a text: give --text FILE, of what the model is to be "
            f"good at, or --method {NEAREST}"
        )
    if "://" in asked.destination or asked.destination.endswith(".gguf"):
        raise CheckpointError(
            f"{asked.destination}: a Hugging Face folder is written, to a local path"
        )


def _near(place: Path) -> Path:
    """Return the closest folder that exists: the disk that the result goes to."""
    return next(each for each in place.absolute().parents if each.is_dir())


@dataclass(frozen=True, slots=True)
class _Quantizing:
    asked: QuantizeRequest
    checkpoint: Checkpoint
    place: Path
    folder: Path  # of what waits, and is removed
    report: Report

    def outcome(self) -> QuantizeOutcome:
        form, method = self.asked.form, self.asked.method
        recipe = _recipe(self.checkpoint, DTYPE='"float32"')
        texts = self._texts(recipe)
        model = SegmentedModel(recipe, self.checkpoint)
        chosen = packable(recipe, model.checkpoint, form)
        if not chosen:
            raise InvalidRequest(
                f"no matrix of this model can be packed: give another --group than {form.group}, "
                "or 0 for a scale per row"
            )
        tensors = PackedTensors(model.checkpoint, form, self.folder)
        calibration = Calibration(
            model, chosen, Grid(form.bits, form.group, _held(form)), method, tensors
        )
        rows = None
        if texts is not None and method != NEAREST:
            rows = embedded_rows(model, texts.calibration, self.folder / "calibration.rows")
        calibration.run(rows, self.report)
        self._write(tensors)
        return QuantizeOutcome(
            findings=calibration.findings,
            left=dict(Counter(_DIGITS.sub("*", n) for n in _left(tensors))),
            bytes=_bytes(tensors),
            quality={} if texts is None else self._compared(texts.held_out),
            tokens=0 if rows is None or texts is None else texts.calibration.size,
            held_out=0 if texts is None else texts.held_out.size,
        )

    def _texts(self, recipe: Recipe) -> CutText | None:
        if self.asked.text is None:
            return None
        tokenizer = self.checkpoint.tokenizer()
        length = min(_LENGTH, recipe.max_context)
        start = [tokenizer.bos_id] if tokenizer.adds_bos and tokenizer.bos_id is not None else []
        tokens = tokenizer.encode(self.asked.text)
        tokens = tokens[len(start) :] if tokens[: len(start)] == start else tokens
        step = length - len(start)
        whole = len(tokens) // step
        if whole < _LEAST:
            raise InvalidRequest(
                f"the text has {len(tokens)} tokens; at least {_LEAST * step} are needed, and some "
                "ten thousand do well: give a longer one"
            )
        cut = [[*start, *tokens[at * step : (at + 1) * step]] for at in range(whole)]
        held_out = max(min(whole // _SHARE, _HELD_OUT), 1)
        wanted = min(max(self.asked.tokens // length, 1), whole - held_out)
        # Spread over the text, of which any part may differ from the rest.
        places = np.linspace(0, whole - held_out - 1, wanted).round().astype(int)
        inputs = np.asarray(cut, np.int32)
        return CutText(inputs[places], inputs[whole - held_out :])

    def _write(self, tensors: PackedTensors) -> None:
        dtypes, form = tensors.dtypes(), tensors.form

        def write(path: Path) -> None:
            path.mkdir()
            # A head that is tied has no tensor, but a module in transformers.
            left = {"lm_head", *(name.removesuffix(".weight") for name in _left(tensors))}
            said = quantization_config(form, left)
            write_beside(tensors.checkpoint, path, {"": form.dtype}, said)
            write_safetensors(tensors, path, dtypes, self.report, self.asked.max_shard)
            copy_sentence_settings(tensors.checkpoint.folder, path)

        write_then_rename(self.place, write)

    def _compared(self, held_out: np.ndarray) -> dict[str, Quality]:
        """Compare what was written with what it was made of, each as a server computes it."""
        form = self.asked.form
        scheme = f"int{form.bits}" + (f":{form.group}" if form.group else "")
        with closing(open_checkpoint(str(self.place))) as written:
            models = {
                SOURCE: SegmentedModel(_recipe(self.checkpoint), self.checkpoint),
                f'QUANTIZE "{scheme}"': SegmentedModel(
                    _recipe(self.checkpoint, QUANTIZE=f'"{scheme}"'), self.checkpoint
                ),
                WRITTEN: SegmentedModel(_recipe(written, QUANTIZE='"stored"'), written),
            }
            return compare(models, held_out, self.folder, self.report)


def _recipe(checkpoint: Checkpoint, **overrides: str) -> Recipe:
    """Raises InvalidRequest or CheckpointError if it is no language model that is served here."""
    recipe = make_recipe(AUTO, checkpoint.config, overrides)
    if not isinstance(recipe, Recipe):
        raise InvalidRequest(
            f"a {checkpoint.config.get('model_type')} makes no text: only language models are "
            "quantised; publish it as it is"
        )
    return recipe


def _held(form: PackedForm) -> Callable[[np.ndarray], np.ndarray]:
    """Return what rounds scales to the dtype that they are stored in, and none to zero."""
    dtype = DTYPES[form.dtype]
    least = np.float32(2.0**-24 if form.dtype == "float16" else 2.0**-126)

    def stored(scales: np.ndarray) -> np.ndarray:
        return np.maximum(scales.astype(dtype).astype(np.float32), least)

    return stored


def _left(tensors: PackedTensors) -> Sequence[str]:
    """Return the matrices that are not packed."""
    shape = tensors.checkpoint.shape
    return [n for n in tensors.checkpoint.names() if n not in tensors.shapes and len(shape(n)) > 1]


def _bytes(tensors: PackedTensors) -> dict[str, int]:
    sizes = {"int32": 4, "int64": 8, **{name: each.itemsize for name, each in DTYPES.items()}}
    written = (int(np.prod(tensors.shape(n))) * sizes[d] for n, d in tensors.dtypes().items())
    source = (2 * int(np.prod(tensors.checkpoint.shape(n))) for n in tensors.checkpoint.names())
    return {SOURCE: sum(source), WRITTEN: sum(written)}
