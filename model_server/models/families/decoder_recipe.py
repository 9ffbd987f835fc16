"""Building a decoder family's recipe from its layers: everything families share outside the layers.

Tensor names are the ones Hugging Face gives most decoders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flax import nnx

from model_server.kernels.pages import HeadShape
from model_server.models.config_keys import ConfigKeys
from model_server.models.layers.activations import Activation, activation_of
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.feed_forward import FeedForward, GatedFeedForward
from model_server.models.layers.layers import Embedding, Linear, RmsNorm
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import Rope
from model_server.models.recipe import Recipe, States, head_cache
from model_server.models.weights.weight import WeightForm

BuildLayer = Callable[[int, WeightForm], nnx.Module]
BuildAttention = Callable[[str, AttentionShape, WeightForm], nnx.Module]  # str: layer prefix
BuildFfw = Callable[[str, WeightForm], nnx.Module]
BuildNorm = Callable[[str], nnx.Module]  # str: tensor name without .weight


def decoder_recipe(
    keys: ConfigKeys,
    served: Mapping[str, Any],
    *,
    shape: AttentionShape,
    ropes: Sequence[Rope | None],
    layer: BuildLayer,
    norm: BuildNorm | None = None,
    table: str = "model.embed_tokens",
    head: Callable[[WeightForm], Linear] | None = None,
    plus_one: bool = False,
    tied: bool = False,
    windows: Sequence[int | None] = (),
    embedding_scale: Callable[[WeightForm], float] = lambda form: 1.0,
    logits_softcap: float | None = None,
    logits_scale: float = 1.0,
    states: States | None = None,
    others: Sequence[HeadShape | None] = (),
    kind: Callable[..., Decoder] = Decoder,
) -> Recipe:
    """Build a recipe over layers of any kind.

    served: the recipe's serving fields.
    shape: attention shape of any layer; all layers cache the same, but as `others` says.
    ropes: one per layer, None: it knows no positions.
    norm: of the last hidden states; None: an RMS norm.
    table: the embedding's tensor, without .weight.
    head: None: the usual one, or none if it is tied.
    plus_one: the checkpoint stores the final norm's scale minus one.
    windows: tokens that a query sees at most, one per layer, None: all; (): all in all layers.
    tied: whether the head shares the embedding if config.json does not say.
    states: of the layers that keep one in place of keys and values; None: all attend.
    others: what each layer caches of a token, None: as `shape` says; (): all do.
    kind: of decoder, which takes what `Decoder` takes.
    """
    seen = tuple(windows)
    if states is not None:
        every = zip(states(1), windows or [None] * len(ropes), strict=True)
        seen = tuple(window if state is None else 2 for state, window in every)

    def build(form: WeightForm) -> Decoder:
        return kind(
            embedding=embedding_of(keys, form, table),
            layers=[layer(index, form) for index in range(len(ropes))],
            final_norm=(norm or rms_norms(keys, plus_one=plus_one))("model.norm"),
            head=head(form) if head else head_of(keys, form, tied=tied),
            ropes=ropes,
            embedding_scale=embedding_scale(form),
            logits_softcap=logits_softcap,
            logits_scale=logits_scale,
        )

    return Recipe(
        build=build,
        cache=head_cache(
            layers=len(ropes),
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            value_dim=shape.value_dim,
            states=states or _no_states,
            others=tuple(others),
        ),
        embed=shape.embed,
        vocab=keys.whole("vocab_size"),
        short_context=next((r.short_context for r in ropes if r and r.short_context), None),
        windows=seen,
        **served,
    )


def _no_states(shards: int) -> tuple[()]:
    return ()


def pre_norm_recipe(
    keys: ConfigKeys,
    served: Mapping[str, Any],
    *,
    shapes: Sequence[AttentionShape],
    rope: Rope | Sequence[Rope | None],
    rotates: Sequence[bool] = (),
    attention: BuildAttention | None = None,
    ffw: BuildFfw | Sequence[BuildFfw] | None = None,
    scale: float = 1.0,
    **rest: Any,
) -> Recipe:
    """Build a recipe over Llama-style layers, with optional attention and feed-forward.

    shapes: one per layer.
    rope: of all layers that rotate queries and keys, or of each layer.
    rotates: layers that do; (): all.
    ffw: of all layers, or of each.
    scale: of what a layer adds.
    rest: as for `decoder_recipe`.
    """
    make_attention, made_ffw = attention or plain_attention, ffw or gated_ffw(keys)
    ffws = made_ffw if isinstance(made_ffw, Sequence) else [made_ffw] * len(shapes)
    norm = rest.get("norm") or rms_norms(keys, plus_one=rest.get("plus_one", False))
    turning = rotates or [True] * len(shapes)
    ropes = [rope if turns else None for turns in turning] if isinstance(rope, Rope) else rope

    def layer(index: int, form: WeightForm) -> PreNormLayer:
        prefix = f"model.layers.{index}"
        return PreNormLayer(
            norm(f"{prefix}.input_layernorm"),
            make_attention(prefix, shapes[index], form),
            norm(f"{prefix}.post_attention_layernorm"),
            ffws[index](prefix, form),
            scale=scale,
        )

    return decoder_recipe(
        keys,
        served,
        ropes=ropes,
        layer=layer,
        windows=[shape.window for shape in shapes],
        **{"shape": shapes[0], **rest},
    )


def rms_norms(keys: ConfigKeys, *, plus_one: bool = False) -> BuildNorm:
    return lambda name: norm_of(keys, name, plus_one=plus_one)


def norm_of(keys: ConfigKeys, name: str, *, plus_one: bool = False) -> RmsNorm:
    return RmsNorm(
        keys.whole("hidden_size"),
        (f"{name}.weight",),
        epsilon=keys.number("rms_norm_eps", 1e-6),
        plus_one=plus_one,
    )


def plain_attention(prefix: str, shape: AttentionShape, form: WeightForm) -> Attention:
    return Attention(shape, AttentionSources.hugging_face(f"{prefix}.self_attn"), form)


def gated_ffw(
    keys: ConfigKeys,
    activation: Any = None,
    *,
    gate: Activation | None = None,
    biased: bool = False,
    size: int | None = None,
) -> BuildFfw:
    """Builder of the config's gated feed-forward.

    activation: its name, gate: what it is, size: these override the config's.
    """
    embed, ffw = keys.whole("hidden_size"), size or keys.whole("intermediate_size")
    found = gate or activation_of(activation or keys.get("hidden_act", "silu"))

    def build(prefix: str, form: WeightForm) -> GatedFeedForward:
        return GatedFeedForward.hugging_face(
            embed, ffw, f"{prefix}.mlp", activation=found, form=form, biased=biased
        )

    return build


def plain_ffw(
    keys: ConfigKeys, up: str, down: str, *, activation: Any = None, biased: bool = False
) -> BuildFfw:
    """Builder of a feed-forward of two matrices under these names; as `gated_ffw` otherwise."""
    embed, ffw = keys.whole("hidden_size"), keys.whole("intermediate_size")
    found = activation_of(activation or keys.get("hidden_act", "gelu"))

    def build(prefix: str, form: WeightForm) -> FeedForward:
        names = f"{prefix}.mlp.{up}", f"{prefix}.mlp.{down}"
        return FeedForward(
            embed,
            ffw,
            up=(f"{names[0]}.weight",),
            down=(f"{names[1]}.weight",),
            activation=found,
            form=form,
            biases=((f"{names[0]}.bias",), (f"{names[1]}.bias",)) if biased else None,
        )

    return build


def embedding_of(
    keys: ConfigKeys, form: WeightForm, table: str = "model.embed_tokens"
) -> Embedding:
    return Embedding(
        keys.whole("vocab_size"),
        keys.whole("hidden_size"),
        (f"{table}.weight",),
        form=form,
    )


def head_of(keys: ConfigKeys, form: WeightForm, *, tied: bool = False) -> Linear | None:
    """Output head, or None if tied to the embedding; `tied` applies if the config is silent."""
    if keys.flag("tie_word_embeddings", tied):
        return None
    return Linear(
        keys.whole("vocab_size"),
        keys.whole("hidden_size"),
        ("vocab", "embed"),
        ("lm_head.weight",),
        form=form,
    )
