"""Recipe of Gemma 3n and 4: layers that borrow keys and values, and inputs of each layer's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flax import nnx

from model_server.kernels.pages import HeadShape
from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import BuildLayer, embedding_of, head_of, norm_of
from model_server.models.families.gemma import activation_name, embedding_scale
from model_server.models.layers.activations import Activation, activation_of
from model_server.models.layers.attention import AttentionShape
from model_server.models.layers.layers import RmsNorm
from model_server.models.layers.lending import (
    FinalStream,
    LendingDecoder,
    PerLayerGate,
    PerLayerInputs,
)
from model_server.models.layers.rope import Rope
from model_server.models.media.media_recipe import MediaRecipe, encoders
from model_server.models.recipe import Recipe, head_cache, serving
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

BuildPart = Callable[[WeightForm], nnx.Module]
Norms = tuple[RmsNorm, RmsNorm, RmsNorm, RmsNorm]


def lending_recipe(
    keys: ConfigKeys,
    values: Mapping[str, Any],
    *,
    shape: AttentionShape,
    lenders: Sequence[int | None],
    ropes: Sequence[Rope],
    windows: Sequence[int | None],
    layer: BuildLayer,
    final: BuildPart | None = None,
    expand: BuildPart | None = None,
    versions: int = 1,
    others: Sequence[HeadShape | None] = (),
    media: Sequence[MediaRecipe | None] = (),
    filler: int = 0,
) -> Recipe:
    """Build a recipe over layers as `LendingDecoder` calls them.

    shape: of layers that cache as most do. lenders, ropes, windows, others: of each layer.
    final: of the last stream; None: an RMS norm. expand: of the embedding; None: it is the stream.
    versions: of a token in the stream. media: of its encoders. filler: the token whose inputs per
    layer those of media have.
    """
    size, stream = keys.whole("hidden_size_per_layer_input", least=0), versions * shape.embed
    scale, layers = embedding_scale(keys), len(lenders)

    def build(form: WeightForm) -> LendingDecoder:
        return LendingDecoder(
            lenders=lenders,
            inputs=_inputs_of(keys, layers, filler, form) if size else None,
            stream=stream,
            expand=expand and expand(form),
            embedding=embedding_of(keys, form),
            layers=[layer(index, form) for index in range(layers)],
            final_norm=FinalStream(final(form) if final else norm_of(keys, "model.norm"), stream),
            head=head_of(keys, form, tied=True),
            ropes=ropes,
            embedding_scale=scale(form),
            logits_softcap=keys.number_or_none("final_logit_softcapping"),
        )

    return Recipe(
        build=build,
        cache=head_cache(
            layers=layers,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            lenders=tuple(lenders) if any(each is not None for each in lenders) else (),
            others=tuple(others) if any(others) else (),
        ),
        embed=shape.embed,
        carried=stream + layers * size,
        vocab=keys.whole("vocab_size"),
        windows=tuple(windows),
        unused=_spare_tensors(lenders),
        media=encoders(*media),
        **serving(values, keys.whole("max_position_embeddings")),
    )


def _inputs_of(keys: ConfigKeys, layers: int, filler: int, form: WeightForm) -> PerLayerInputs:
    size = keys.whole("hidden_size_per_layer_input")
    return PerLayerInputs(
        keys.whole("vocab_size_per_layer_input"),
        keys.whole("hidden_size"),
        layers,
        size,
        form,
        epsilon=epsilon_of(keys),
        scale=size**0.5,
        other=filler,
    )


def gate_of(keys: ConfigKeys, name: str, form: WeightForm) -> PerLayerGate:
    """Return the gate of a layer's own inputs."""
    return PerLayerGate(
        keys.whole("hidden_size"),
        keys.whole("hidden_size_per_layer_input"),
        name,
        form,
        activation=activation_in(keys),
        epsilon=epsilon_of(keys),
    )


def norms_of(keys: ConfigKeys, name: str) -> Norms:
    """Return the norms before and behind attention, and before and behind the feed-forward."""
    halves = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    first, second, third, fourth = (norm_of(keys, f"{name}.{half}_layernorm") for half in halves)
    return first, second, third, fourth


def epsilon_of(keys: ConfigKeys) -> float:
    return keys.number("rms_norm_eps", 1e-6)


def activation_in(keys: ConfigKeys) -> Activation:
    return activation_of(activation_name(keys))


def lenders_of(keys: ConfigKeys, slides: Sequence[bool]) -> list[int | None]:
    """Return the lender of each layer, None for those that have keys and values of their own.

    The last `num_kv_shared_layers` layers borrow from the last one of their kind before them.
    Raises CheckpointError.
    """
    count = keys.whole("num_kv_shared_layers", least=0)
    own = len(slides) - count
    last = {slide: index for index, slide in enumerate(slides[: max(own, 0)])}
    if own < 1 or not set(slides[own:]) <= last.keys():
        raise CheckpointError(
            f"config.json has num_kv_shared_layers = {count} of {len(slides)} layers; of each kind "
            "of layer at least one must have keys and values of its own"
        )
    return [None] * own + [last[slide] for slide in slides[own:]]


def _spare_tensors(lenders: Sequence[int | None]) -> tuple[str, ...]:
    """Prefixes of tensors that published files hold for layers that borrow, which need none."""
    parts = ("k_proj.", "v_proj.", "k_norm.", "v_norm.")
    borrowing = [index for index, lender in enumerate(lenders) if lender is not None]
    return tuple(f"model.layers.{index}.self_attn.{part}" for index in borrowing for part in parts)
