"""Recipes: how to build a model's module and how to serve it, from a family to the loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
from flax import nnx

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.packed import Packing
from model_server.kernels.cpu.served import is_native
from model_server.kernels.pages import CacheShape, HeadShape, StateArray
from model_server.models.layers.decoder import Decoder
from model_server.models.media.media_overrides import MEDIA_DEFAULTS, parse_media_rows
from model_server.models.media.media_recipe import Encoders, MediaRecipe, encoder_form
from model_server.models.overrides import (
    CHAT_DEFAULTS,
    SPECULATION_DEFAULTS,
    ChatSettings,
    Speculation,
    check_choices,
    check_positive,
    check_sampling,
    parse_chat,
    parse_speculation,
)
from model_server.models.saxml_replies import PLAIN_REPLIES, SaxmlReplies
from model_server.models.tasks import PASS_DEFAULTS, Tasks, parse_tasks
from model_server.models.weights.low_rank import USUAL_RANK, AdapterRoom, parse_adapters
from model_server.models.weights.quantization import Scheme, parse_quantize, quantization_of
from model_server.models.weights.sharding import (
    ONE_DEVICE,
    HeadSplit,
    Layout,
    Rules,
    parse_mesh_shape,
    parse_rules,
    split_heads,
)
from model_server.models.weights.stage import Stage, stages_of
from model_server.models.weights.weight import Blueprint, WeightForm, blueprint, take_one_byte
from sax.errors import InvalidRequest
from sax.types import SamplingParams

# Serving defaults of every model class; a family adds its own sizes.
SERVING_DEFAULTS: Mapping[str, Any] = {
    "DTYPE": "bfloat16",  # of weights: bfloat16 or float32
    # int8, int4 or float8, with ":N" a scale per N columns; stored: as in the checkpoint; null
    "QUANTIZE": None,
    "ACTIVATIONS": None,  # int8: what quantised weights are multiplied with; null: two int8 of each
    # float32, bfloat16, int8 or float8_e4m3fn (the last two with a scale per head and token); null:
    # float32 on a CPU, else DTYPE
    "KV_CACHE_DTYPE": None,
    "ICI_MESH_SHAPE": None,  # devices on the axes replica, data, model; null: all on model
    "NUM_STAGES": 1,  # pipeline stages: groups of hosts, each with its own mesh
    "MAX_ADAPTERS": 0,  # LoRA adapters of this model in memory at once; 0: none
    "MAX_ADAPTER_RANK": USUAL_RANK,  # of an adapter
    "RETURN_ROUTED_EXPERTS": False,  # steps also give which experts each token used
    **SPECULATION_DEFAULTS,
    # Changes to the default `Rules`: logical axis -> mesh axis or null.
    "SHARDING_RULES": None,
    # Tokens, prompt plus answer; "auto": what memory holds in every slot; null: the model's own.
    "MAX_CONTEXT": None,
    "KV_CACHE_BYTES": None,  # bytes of KV pages on each device; null: the server's flag
    "NUM_CACHE_SLOTS": None,  # concurrent sequences; null: the server's flag
    "NUM_SAMPLES": 1,  # answers per Saxml Generate call
    "TEMPERATURE": 1.0,
    "TOP_K": 0,
    "TOP_P": 1.0,
    # How a Saxml query (of Generate, or the prefix of Score) becomes a prompt: "chat": as a user
    # turn in the chat template, "raw": verbatim; null: chat if the checkpoint has a template (an
    # instruct model answers a bare question with nothing), else raw.
    "QUERY_FORMAT": None,
    "MAX_DECODE_STEPS": 128,  # for Saxml calls without per_example_max_decode_steps
    **CHAT_DEFAULTS,
    **PASS_DEFAULTS,
    **MEDIA_DEFAULTS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A language model, configured but not in memory."""

    build: Callable[[WeightForm], nnx.Module]
    cache: Callable[[int], CacheShape]  # int: devices that share the heads
    embed: int
    vocab: int
    max_context: int
    dtype: str
    quantize: Scheme | str | None  # a scheme; "stored"; None: unquantised
    kv_cache_dtype: str | None  # None: by platform
    activations: str | None = None  # int8: what native kernels multiply quantised weights with
    mesh_shape: tuple[int, ...] | None  # per stage; None: every device, on the model axis
    stages: int
    rules: Rules
    slots: int | None  # None: the server's flag
    samples: int
    query_format: str | None  # chat, raw; None: chat if there is a template
    defaults: SamplingParams
    kv_cache_bytes: int | None = None  # on each device; None: the server's flag
    auto_context: bool | None = None  # as long as memory holds; None: as the server's flag says
    tokenized_input: bool = False  # a Saxml query is a list of token ids
    tokenized_output: bool = False  # and so is its answer
    start_token: int | None = None  # for an empty text, without a tokenizer of its own
    replies: SaxmlReplies = PLAIN_REPLIES
    batches: tuple[int, ...] = ()  # sequences of decode steps to compile; (): doubling to the slots
    note: str = ""  # where it does not do as its model path says
    # prefixes of checkpoint tensors that the model deliberately ignores
    unused: tuple[str, ...] = ()
    stage: Stage | None = None  # None: the whole model
    adapters: AdapterRoom | None = None  # None: no room for any
    routed_experts: bool = False  # steps also give which experts each token used
    speculation: Speculation = Speculation()
    # Longest sequence that is rotated by the short one of two lists of factors; None: one list
    short_context: int | None = None
    # Tokens that a query sees at most in each layer of the whole model, None: all; (): all in all.
    # A layer with a state needs the page of the token before, as if it saw two.
    windows: tuple[int | None, ...] = ()
    tasks: Tasks = Tasks()
    causal: bool = True  # False: its tokens also see those after them, so it only embeds
    bidirectional_prompt: int | None = None  # tokens of the longest, which all see each other
    chat: ChatSettings = ChatSettings()
    media: tuple[MediaRecipe, ...] = ()  # of the encoders of images and sounds among its tokens
    media_rows: int | None = None  # vectors of them in memory at once; the registry sets it
    draft: DraftRecipe | None = None  # of the model that drafts its tokens; the loader opens it
    own_head: OwnHead | None = None  # draft layers of its checkpoint; None: none that are read
    # Hidden states that its steps show a draft head: the stream before each of these layers, side
    # by side; (): the last ones, normalised; None: none
    shows: tuple[int, ...] | None = None
    # Layer whose choice of tokens to attend to each takes in the whole model; None: none. (): none
    choosers: tuple[int | None, ...] = ()
    carried: int | None = None  # numbers of a token between layers; None: as many as `embed`
    # How checkpoints of this configuration store a tensor, by name, for plans without its files
    packing: Callable[[str], Packing | None] | None = None

    @property
    def window(self) -> int | None:
        """Tokens that a query sees at most, in any layer; None: all, in some layer.

        Layers with a state have pages of their own, even if all layers are such.
        """
        if self.recurrent or None in self.windows:
            return None
        return max(self._windows, default=None)

    @property
    def sliding_window(self) -> int | None:
        """Tokens that a query sees at most in the layers with a window; None: no layer differs."""
        apart = self.recurrent or None in self.windows
        return max(self._windows, default=None) if apart else None

    @property
    def recurrent(self) -> bool:
        """True if some layer keeps a state in place of keys and values."""
        return bool(self.cache(1).states)

    @property
    def _windows(self) -> list[int]:
        return [window for window in self.windows if window is not None]

    @property
    def row(self) -> int:
        """Numbers of a token between layers, as stages pass them on."""
        return self.embed if self.carried is None else self.carried

    def cut(self) -> tuple[Recipe, ...]:
        """Return a recipe per stage.

        Raises InvalidRequest if there are more stages than layers that can begin one, or a layer
        would have to lend its keys and values to another stage.
        """
        made = self.cache(1)
        inner = {index for index, of in enumerate(self.choosers) if of is not None}
        stages = stages_of(made.layers, self.stages, inner)
        for stage in stages:
            _check_inside(stage, made.lenders[stage.layers])
        return tuple(map(self._of_stage, stages))

    def _of_stage(self, stage: Stage) -> Recipe:
        def cache(shards: int) -> CacheShape:
            return self.cache(shards).part(stage.first, stage.end)

        # A draft model lies whole beside the first stage, which takes in the tokens.
        draft = self.draft if stage.is_first else None
        return replace(self, cache=cache, stage=stage, draft=draft)

    def blueprint(
        self, layout: Layout = ONE_DEVICE, checkpoint: Checkpoint | None = None
    ) -> Blueprint:
        """Return the module without its weights, sharded over a mesh.

        `checkpoint` says how its tensors are quantised, if the recipe keeps them so. Raises
        InvalidRequest if QUANTIZE or ACTIVATIONS would change nothing, or the model cannot be cut
        into stages.
        """
        stored = self.packing if checkpoint is None else checkpoint.packing
        quantization = quantization_of(self.quantize, stored)
        form = WeightForm(
            dtype=jnp.dtype(self.dtype),
            layout=layout,
            quantization=quantization,
            adapters=self.adapters,
            tiles=is_native(layout.platform, layout.mesh.size),
        )
        made = blueprint(lambda: self._built(form))
        if quantization is not None:
            quantization.check(each.packing for each in made.declarations if each.packing)
        stage = self.stage
        return made if stage is None else blueprint(lambda: _kept(self._built(form), stage))

    def _built(self, form: WeightForm) -> nnx.Module:
        made = self.build(form)
        if self.activations is not None and not take_one_byte(made):
            raise InvalidRequest(
                'ACTIVATIONS "int8" is for matrices of 4 and 8 bits on the native CPU kernels, and '
                "here this model has none: give QUANTIZE, or leave ACTIVATIONS out",
                param="overrides.ACTIVATIONS",
            )
        return made

    def media_blueprint(self, layout: Layout = ONE_DEVICE) -> Blueprint | None:
        """Return the `Encoders` without their weights; None: nothing of them lies here.

        QUANTIZE leaves them as they are: they are small, and what they see is computed once. Of a
        pipeline they lie with the first stage, which takes in the tokens.
        """
        media = self.media
        if not media or not (self.stage is None or self.stage.is_first):
            return None
        form = encoder_form(self.dtype, layout)
        return blueprint(lambda: Encoders(media, form))


@dataclass(frozen=True, slots=True)
class DraftRecipe:
    """A draft model, configured but not in memory."""

    recipe: Recipe
    checkpoint: Checkpoint | None  # open while the model loads; None: random weights
    is_head: bool = False  # it reads hidden states of the model, and has its tokens


@dataclass(frozen=True, slots=True)
class OwnHead:
    """Draft layers of a model's own checkpoint; of several, the first."""

    build: Callable[[WeightForm], nnx.Module]
    prefix: str  # of the names of its tensors
    copies: tuple[str, ...] = ()  # prefixes of those that repeat tensors of the model


def _check_inside(stage: Stage, lenders: tuple[int | None, ...]) -> None:
    outside = [layer for layer in lenders if layer is not None and layer < stage.first]
    if outside:
        raise InvalidRequest(
            f"NUM_STAGES is {stage.count}, and {stage} of this model would attend to the keys "
            f"and values of layer {min(outside)}, which is in another: give fewer stages, or 1",
            param="overrides.NUM_STAGES",
        )


def _kept(module: nnx.Module, stage: Stage) -> nnx.Module:
    if not isinstance(module, Decoder):
        raise InvalidRequest(
            f"NUM_STAGES is {stage.count}, but this model ({type(module).__name__}) is not a stack "
            "of layers that can be split: leave it out",
            param="overrides.NUM_STAGES",
        )
    module.keep(stage)
    return module


# Devices that share the heads -> the state of each layer, None: it attends.
States = Callable[[int], tuple[tuple[StateArray, ...] | None, ...]]


def _no_states(shards: int) -> tuple[()]:
    return ()


def head_cache(
    *,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int | None = None,
    states: States = _no_states,
    lenders: tuple[int | None, ...] = (),
    others: tuple[HeadShape | None, ...] = (),
) -> Callable[[int], CacheShape]:
    """Cache shape of plain grouped-query attention (`layers/attention.py`) on any mesh.

    value_dim: None: as of a key. lenders, others: as in `CacheShape`, with the KV heads that a
    checkpoint has.
    """

    def on(shards: int) -> CacheShape:
        split = split_heads(heads, kv_heads, shards)

        def of_layer(other: HeadShape | None) -> HeadShape | None:
            return other and other._replace(kv_heads=_alike(split, heads, other.kv_heads, shards))

        return CacheShape(
            layers=layers,
            kv_heads=split.kv_heads,
            key_dim=head_dim,
            value_dim=value_dim or head_dim,
            axis=split.axis,
            query_axis=split.axis,
            states=states(shards),
            lenders=lenders,
            others=tuple(map(of_layer, others)),
        )

    return on


def _alike(split: HeadSplit, heads: int, kv_heads: int, shards: int) -> int:
    """Return the KV heads of layers with another number of them, which must be split likewise."""
    other = split_heads(heads, kv_heads, shards)
    if other.axis != split.axis:
        raise InvalidRequest(
            f"{split.kv_heads} and {kv_heads} KV heads, in different layers, do not both divide "
            f"over {shards} devices: give ICI_MESH_SHAPE another last number",
            param="overrides.ICI_MESH_SHAPE",
        )
    return other.kv_heads


@dataclass(frozen=True, slots=True)
class ModelClass:
    """A registry entry: a model path and how to build its recipe."""

    path: str
    needs_checkpoint: bool
    overridable: Mapping[str, Any]
    # config.json of the checkpoint (None: random weights), checked override values -> recipe
    configure: Callable[[Mapping[str, Any] | None, Mapping[str, Any]], Recipe]
    # what a Pax checkpoint says, checked override values -> config.json; None: without own sizes
    config_of: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """Language models sized by their checkpoint: the FAMILY of a module below `families`."""

    path: str  # short name accepted by publish
    model_types: tuple[str, ...]  # of config.json
    title: str  # display name
    configure: Callable[[Mapping[str, Any] | None, Mapping[str, Any]], Recipe]
    overridable: Mapping[str, Any] = field(default_factory=lambda: SERVING_DEFAULTS)
    # Reads no other model_type: neither keys nor tensors tell it from Llama, which it is not.
    own_types_only: bool = False

    def model_class(self) -> ModelClass:
        return ModelClass(self.path, True, self.overridable, self.configure)


AUTO = "auto"


def serving(values: Mapping[str, Any], own_context: int) -> dict[str, Any]:
    """Validate override values into the recipe's serving fields. Raises InvalidRequest."""
    check_choices(values)
    check_positive(values)
    check_sampling(values)
    wanted = values["MAX_CONTEXT"]
    if wanted is not None and wanted > own_context:
        raise InvalidRequest(
            f"MAX_CONTEXT {wanted} is more than the {own_context} tokens this model supports",
            param="overrides.MAX_CONTEXT",
        )
    return {
        "dtype": values["DTYPE"],
        "quantize": parse_quantize(values["QUANTIZE"]),
        "kv_cache_dtype": values["KV_CACHE_DTYPE"],
        "activations": values["ACTIVATIONS"],
        "mesh_shape": parse_mesh_shape(values["ICI_MESH_SHAPE"]),
        "stages": values["NUM_STAGES"],
        "adapters": parse_adapters(values),
        "routed_experts": values.get("RETURN_ROUTED_EXPERTS", False),
        "speculation": parse_speculation(values),
        "rules": parse_rules(values["SHARDING_RULES"]),
        "max_context": wanted or own_context,
        "slots": values["NUM_CACHE_SLOTS"],
        "kv_cache_bytes": values.get("KV_CACHE_BYTES"),
        "samples": values["NUM_SAMPLES"],
        "query_format": values["QUERY_FORMAT"],
        "tasks": parse_tasks(values),
        "media_rows": parse_media_rows(values),
        "chat": parse_chat(values),
        "defaults": SamplingParams(
            temperature=values["TEMPERATURE"],
            top_k=values["TOP_K"],
            top_p=values["TOP_P"],
            max_tokens=values["MAX_DECODE_STEPS"],
        ),
    }
