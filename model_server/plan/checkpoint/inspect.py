"""Describes a checkpoint and lists everything that would keep it from loading.

Reads headers and small files, no weights, and uses no accelerator.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from model_server.checkpoints.checkpoint import Checkpoint, ordered_ends
from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.gguf.parts import open_parts
from model_server.checkpoints.hub.fetching import local_copy
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.huggingface.sentence_transformers import read_sentence_settings
from model_server.checkpoints.media_part import media_part_of
from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.orbax.pax.dialect import SAXML_SIZES
from model_server.checkpoints.roots import local_place
from model_server.checkpoints.split_name import part_names
from model_server.loading.audio.sound_settings import check_sound_settings
from model_server.loading.media.encoder_weights import check_image_tokens, encoder_problems
from model_server.loading.weights import mismatches
from model_server.models.audio.audio_recipe import AudioClass
from model_server.models.audio.speech_tokens import read_speech_tokens
from model_server.models.audio.synthesizer_recipe import SynthesizerClass
from model_server.models.audio.vits_tokenizer import read_vits_tokenizer
from model_server.models.recipe import Recipe
from model_server.models.registry import (
    audio_class,
    families,
    fitting_classes,
    make_recipe,
    synthesizer_class,
    vision_class,
)
from model_server.models.vision.image_settings import read_image_settings
from model_server.models.vision.vision_recipe import VisionClass, needed_of
from model_server.models.weights.weight import Declaration
from model_server.plan.checkpoint.inspect_report import (
    Report,
    StoredFile,
    StoredKind,
    TokenizerFacts,
)
from sax.errors import CheckpointError, SaxError

_NAMED = 20  # tensors listed per problem
_QUANTIZED = ("int8", "int4")
_MESH = "one, or the mesh of ICI_MESH_SHAPE"


def inspect(path: str) -> Report:
    """Report on a checkpoint; what is wrong goes to the report's problems and is not raised."""
    report = Report(path)
    try:
        report.path = local_copy(path)
        checkpoint = open_checkpoint(report.path, lambda error: report.problems.append(error.text))
    except CheckpointError as exc:
        report.problems.append(exc.text)
        return report
    with closing(checkpoint):
        vision = vision_class(report.path_as, checkpoint.config)
        if vision is not None:
            checkpoint = needed_of(checkpoint, vision.unused)
        texts = (_tokenizer, _template, _image_tokens) if vision is None else ()
        if audio_class(report.path_as, checkpoint.config) is not None:
            texts = (_tokenizer,)
        if synthesizer_class(report.path_as, checkpoint.config) is not None:
            texts = ()  # its tokenizer is read with the model
        for describe in (_storage, _model, *texts):
            try:
                describe(report, checkpoint)
            except SaxError as exc:
                report.problems.append(exc.text)
    return report


def _storage(report: Report, checkpoint: Checkpoint) -> None:
    report.format = checkpoint.format
    report.files = stored_files(report.path, checkpoint)
    report.stored = stored_kinds(report.path, checkpoint)
    names = checkpoint.names()
    report.parameters = sum(math.prod(checkpoint.shape(name)) for name in names)
    report.problems += _unreadable(checkpoint, names)


def _unreadable(checkpoint: Checkpoint, names: list[str]) -> Iterator[str]:
    for name in names:
        try:
            checkpoint.dtype(name)
        except CheckpointError as exc:
            yield exc.text


def _model(report: Report, checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    report.model_type = config.get("model_type")
    report.architecture = _first_text(config.get("architectures"))
    report.family = next((f.title for f in families() if report.model_type in f.model_types), None)
    vision, audio = vision_class(report.path_as, config), audio_class(report.path_as, config)
    speaker = synthesizer_class(report.path_as, config)
    try:
        if vision is not None:
            _fit_images(report, vision, checkpoint)
        elif audio is not None:
            _fit_sounds(report, audio, checkpoint)
        elif speaker is not None:
            _fit_speaker(report, speaker, checkpoint)
        else:
            _fit(report, checkpoint)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as exc:
        # A value that the family does not expect; it would fail a load the same way.
        raise CheckpointError(f"config.json cannot be understood: {exc!r}") from exc


def _first_text(given: Any) -> str | None:
    first = given[0] if isinstance(given, list) and given else None
    return first if isinstance(first, str) else None


def _fit(report: Report, checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    if SAXML_SIZES in config:
        report.family = "a class of Saxml's"
        report.family = report.path_as = _class_of(config)
    recipe = make_recipe(report.path_as, config, {})
    if isinstance(recipe, Recipe):
        module = recipe.blueprint(checkpoint=checkpoint)
        report.context = recipe.max_context
        _fit_media(report, recipe, checkpoint)
    else:
        module = recipe.blueprint()
        report.context = recipe.own_context
        read_sentence_settings(checkpoint.folder)
    report.vocabulary = recipe.vocab
    needed = without_prefixes(checkpoint, recipe.unused)
    report.problems += mismatches(module.declarations, needed, shown=_NAMED)
    report.memory = dict(_memory(report.path_as, config, checkpoint))


def _fit_media(report: Report, recipe: Recipe, checkpoint: Checkpoint) -> None:
    """Describe the encoders of images and sounds, and what would keep it from loading."""
    media, encoder = recipe.media, recipe.media_blueprint()
    if not media or encoder is None:
        if (part := media_part_of(checkpoint)) is not None:
            count = len(part.names())
            report.images = f"not seen: {count} tensors of a part that this family does not build"
        return
    size = sum(math.prod(each.shape) for each in encoder.declarations)
    kinds = {each.kind for each in media}
    seen = "none, but sounds are taken" if "image" not in kinds else "seen"
    told = " and ".join(f"up to {each.rows} tokens {each.counted}" for each in media)
    heard = ", sounds are taken, too" if len(kinds) > 1 else ""
    have = "an encoder" if len(media) == 1 else f"{len(media)} encoders"
    report.images = f"{seen}{heard}, {told}, by {have} of {size:,} parameters"
    report.problems += encoder_problems(encoder, checkpoint, media, shown=_NAMED)


def _image_tokens(report: Report, checkpoint: Checkpoint) -> None:
    if report.tokenizer is None or report.images is None:
        return
    recipe = make_recipe(report.path_as, checkpoint.config, {})
    check_image_tokens(recipe.media if isinstance(recipe, Recipe) else (), checkpoint.tokenizer())


def _fit_images(report: Report, vision: VisionClass, checkpoint: Checkpoint) -> None:
    report.family = f"{vision.title} (images)"
    recipe = vision.configure(checkpoint.config, vision.overridable)
    report.problems += mismatches(recipe.blueprint.declarations, checkpoint, shown=_NAMED)
    report.memory = {"float32": recipe.blueprint.bytes}
    report.devices = f"{_MESH}: each has all weights and computes its share of a batch"
    read_image_settings(checkpoint.folder, None)


def _fit_sounds(report: Report, audio: AudioClass, checkpoint: Checkpoint) -> None:
    report.family = f"{audio.title} (sounds)"
    recipe = audio.configure(checkpoint.config, audio.overridable)
    report.context, report.vocabulary = recipe.config.context, recipe.config.vocab
    encoder, decoder = recipe.config.heads
    report.devices = (
        f"{_MESH}: its model axis divides {encoder} heads of the encoder and {decoder} of the "
        "decoder, its others windows"
    )
    needed = recipe.needed(checkpoint)
    report.problems += mismatches(recipe.blueprint.declarations, needed, shown=_NAMED)
    for kind in ("bfloat16", "float32"):
        values = {**audio.overridable, "DTYPE": kind}
        report.memory[kind] = audio.configure(checkpoint.config, values).blueprint.bytes
    check_sound_settings(checkpoint.folder, recipe.config)
    read_speech_tokens(checkpoint, recipe.config)


def _fit_speaker(report: Report, model: SynthesizerClass, checkpoint: Checkpoint) -> None:
    report.family = f"{model.title} (speech)"
    recipe = model.configure(checkpoint.config, model.overridable)
    sizes = recipe.config
    report.vocabulary = sizes.vocab
    speakers = f"{sizes.speakers} speaker{'s' * (sizes.speakers > 1)}"
    report.devices = f"one, for {speakers} at {sizes.rate} samples a second"
    report.problems += mismatches(
        recipe.blueprint.declarations, recipe.needed(checkpoint), shown=_NAMED
    )
    for kind in ("bfloat16", "float32"):
        values = {**model.overridable, "DTYPE": kind}
        report.memory[kind] = model.configure(checkpoint.config, values).blueprint.bytes
    read_vits_tokenizer(checkpoint.folder, sizes.vocab)


def _class_of(config: dict[str, Any]) -> str:
    """Return the class that a Pax checkpoint is published as. Raises CheckpointError."""
    if found := fitting_classes(config):
        return found[0]
    sizes = ", ".join(f"{name} {size}" for name, size in config[SAXML_SIZES].items())
    raise CheckpointError(
        f"no class of saxml.server.pax.lm.params has its sizes ({sizes}): publish it as a class of "
        "its kind with overrides for those that differ"
    )


def _memory(path: str, config: dict[str, Any], checkpoint: Checkpoint) -> Iterator[tuple[str, int]]:
    """Yield the bytes of the weights on the devices, per number format that can be published."""
    asked = [("bfloat16", {"DTYPE": "bfloat16"})]
    asked += [(kind, {"QUANTIZE": kind}) for kind in _QUANTIZED]
    if any(checkpoint.packing(name) for name in checkpoint.names()):
        asked.append(("stored", {"QUANTIZE": "stored"}))
    for kind, overrides in asked:
        as_json = {key: json.dumps(value) for key, value in overrides.items()}
        try:
            module = _declared(path, config, checkpoint, as_json)
        except SaxError:  # the family does not support this format
            continue
        # Native CPU products pad some matrices; the report is the same on every machine.
        yield kind, sum(leaf.bytes for each in module for leaf in each.plain)


def _declared(
    path: str, config: dict[str, Any], checkpoint: Checkpoint, overrides: dict[str, str]
) -> Sequence[Declaration]:
    """Return the weights of a model, and of its encoder if it has one."""
    recipe = make_recipe(path, config, overrides)
    if not isinstance(recipe, Recipe):
        return recipe.blueprint().declarations
    encoder = recipe.media_blueprint()
    beside = encoder.declarations if encoder else ()
    return (*recipe.blueprint(checkpoint=checkpoint).declarations, *beside)


def _tokenizer(report: Report, checkpoint: Checkpoint) -> None:
    tokenizer = checkpoint.tokenizer()
    spelled: Callable[[int], str] = tokenizer.token_text
    report.tokenizer = TokenizerFacts(
        kind=json.loads(tokenizer.serialized)["model"].get("type", "of an unnamed kind"),
        vocabulary=tokenizer.vocab_size,
        bos=None if tokenizer.bos_id is None else spelled(tokenizer.bos_id),
        eos=[spelled(token_id) for token_id in ordered_ends(checkpoint)],
        adds_bos=tokenizer.adds_bos,
        control=sorted(tokenizer.control_tokens.texts),
    )


def _template(report: Report, checkpoint: Checkpoint) -> None:
    if report.tokenizer is None:  # a template needs the control tokens
        return
    template = checkpoint.chat_template()
    if template is not None:
        report.chat_template = template.source
        template.try_out()


# Lists the files that hold a checkpoint's tensors, and the number formats stored in them.
#
# Reads headers only and skips errors in them, which opening the checkpoint reports.


def stored_files(path: str, checkpoint: Checkpoint) -> list[StoredFile]:
    """Return the files of a local checkpoint; for one in a bucket its URL, with size 0."""
    place = local_place(path)
    if place is None:
        return [StoredFile(path, 0)]
    if checkpoint.format in ("orbax", "pax") and place.is_dir():
        return [StoredFile(place.name, _size(place))]
    if place.is_file():
        found = [place.with_name(name) for name in part_names(place.name)] or [place]
    else:
        found = sorted(place.glob(_PATTERN[checkpoint.format]))
    return [StoredFile(file.name, file.stat().st_size) for file in found]


def stored_kinds(path: str, checkpoint: Checkpoint) -> list[StoredKind]:
    """Return totals per number format, the largest first."""
    if checkpoint.format == "gguf":
        tensors = _gguf(path)
    elif checkpoint.format == "safetensors":
        tensors = _safetensors(path)
    else:
        tensors = _readable(checkpoint)
    kinds: dict[str, StoredKind] = {}
    for kind, size in tensors:
        before = kinds.get(kind, StoredKind(kind, 0, 0))
        kinds[kind] = StoredKind(kind, before.tensors + 1, before.bytes + size)
    return sorted(kinds.values(), key=lambda kind: -kind.bytes)


_PATTERN = {"gguf": "*.gguf", "safetensors": "*.safetensors"}


def _gguf(path: str) -> list[tuple[str, int]]:
    place = local_place(path)
    assert place is not None, "GGUF files are read from local paths"
    with closing(open_parts(place if place.is_file() else next(place.glob("*.gguf")))) as parts:
        return [(t.kind.name, t.nbytes) for t in parts.header.tensors.values()]


def _safetensors(path: str) -> list[tuple[str, int]]:
    place = local_place(path)
    assert place is not None, "Hugging Face folders are read from local paths"
    stored = StoredTensors(place, lambda error: None)
    try:
        return [(dtype, stored.nbytes(name)) for name, dtype in stored.dtypes.items()]
    finally:
        stored.close()


def _readable(checkpoint: Checkpoint) -> Iterable[tuple[str, int]]:
    for name in checkpoint.names():
        try:
            yield checkpoint.dtype(name), checkpoint.nbytes(name)
        except CheckpointError:  # unsupported dtype
            continue


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
