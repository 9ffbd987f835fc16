"""Decoders over latent attention, as Hugging Face names their parts and keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import (
    BuildFfw,
    BuildNorm,
    embedding_of,
    gated_ffw,
    head_of,
    norm_of,
    rms_norms,
)
from model_server.models.families.own_heads import appended_head
from model_server.models.known_keys import DECODER, DECODER_OFF, ignored
from model_server.models.layers.activations import Activation
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.latent_attention import LatentAttention, LatentShape, latent_cache
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import Rope, rope_of, yarn_mscale
from model_server.models.recipe import Recipe, States, serving
from model_server.models.weights.weight import WeightForm

BuildLatent = Callable[[LatentShape, str, WeightForm], nnx.Module]


LATENT = (
    *(key for key in DECODER if key not in ("head_dim", "num_key_value_heads")),
    "attention_bias",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)


# All heads share one latent; head sizes are given part by part.
LATENT_OFF = {**DECODER_OFF, **ignored("head_dim", "num_key_value_heads", "qk_head_dim")}


def latent_recipe(
    keys: ConfigKeys,
    values: Mapping[str, Any],
    sparse: Sequence[bool],
    routed: BuildFfw,
    *,
    shape: LatentShape | None = None,
    attentions: Sequence[BuildLatent] = (),
    layer_kind: Callable[..., PreNormLayer] = PreNormLayer,
    decoder_kind: Callable[..., Decoder] = Decoder,
    rope: Rope | Sequence[Rope] | None = None,
    rotates: bool = True,
    unused: tuple[str, ...] = (),
    states: States | None = None,
    part: str = "self_attn",
    table: str = "model.embed_tokens",
    around: Callable[[PreNormLayer, str], nnx.Module] | None = None,
    final_norm: BuildNorm | None = None,
    gate: Activation | None = None,
    norms: tuple[BuildFfw, BuildFfw] | None = None,
) -> Recipe:
    """Build a recipe over latent attention, with experts in some layers.

    sparse, attentions: of each layer; () of attentions: usual ones. shape, rope (of all layers, or
    of each), gate (of layers without experts): None: as config.json says; rotates: False: no layer
    does. unused: more prefixes of tensors that are not read. states: as of `decoder_recipe`. part,
    table: names of attention and of the embedding. around: makes a layer of one and of its prefix;
    None: it is the layer. final_norm: None: a usual one. norms: before attention and before
    experts; None: usual ones, as before dense feed-forwards.
    """
    layers = len(sparse)
    shape = shape or latent_shape(keys)
    if rope is None and rotates:
        rope = rope_of(keys.all, shape.rotated_dim, interleaved=_interleaved(keys))
    ropes = rope if isinstance(rope, Sequence) else [rope] * layers
    kept = [None] * layers if states is None else states(1)
    each: Sequence[BuildLatent] = attentions or [LatentAttention] * layers
    made = _LatentLayers(keys, shape, each, routed, gated_ffw(keys, gate=gate), part, norms)

    def layer(index: int, form: WeightForm) -> nnx.Module:
        prefix = f"model.layers.{index}"
        found = made.layer(layer_kind, prefix, index, form, has_experts=sparse[index])
        return found if around is None else around(found, prefix)

    def drafting(prefix: str, form: WeightForm) -> PreNormLayer:
        # Like the first layer it takes nothing from another one.
        return made.layer(PreNormLayer, prefix, 0, form, has_experts=True)

    def build(form: WeightForm) -> Decoder:
        return decoder_kind(
            embedding=embedding_of(keys, form, table),
            layers=[layer(index, form) for index in range(layers)],
            final_norm=(final_norm or rms_norms(keys))("model.norm"),
            head=head_of(keys, form),
            ropes=[of if state is None else None for of, state in zip(ropes, kept, strict=True)],
        )

    cached = latent_cache(
        layers=layers, heads=shape.heads, latent=shape.latent, rotated=shape.rotated_dim
    )
    return Recipe(
        build=build,
        cache=cached if states is None else lambda n: replace(cached(n), states=states(n)),
        windows=() if states is None else tuple(None if its is None else 2 for its in kept),
        embed=shape.embed,
        vocab=keys.whole("vocab_size"),
        unused=(*spare_layers(keys, layers), *unused),
        own_head=appended_head(keys, layers, drafting, ropes[0]) if states is None else None,
        short_context=ropes[0] and ropes[0].short_context,
        **serving(values, keys.whole("max_position_embeddings")),
    )


@dataclass(frozen=True, slots=True)
class _LatentLayers:
    """The parts of each layer."""

    keys: ConfigKeys
    shape: LatentShape
    attentions: Sequence[BuildLatent]
    routed: BuildFfw
    dense: BuildFfw
    part: str
    norms: tuple[BuildFfw, BuildFfw] | None

    def layer(
        self,
        kind: Callable[..., PreNormLayer],
        prefix: str,
        index: int,
        form: WeightForm,
        *,
        has_experts: bool,
    ) -> PreNormLayer:
        """Build a layer with the attention of the layer `index`."""
        before_attention, before_experts = self.norms or (self._usual_norm, self._usual_norm)
        before_ffw = before_experts if has_experts else self._usual_norm
        return kind(
            before_attention(f"{prefix}.input_layernorm", form),
            self.attentions[index](self.shape, f"{prefix}.{self.part}", form),
            before_ffw(f"{prefix}.post_attention_layernorm", form),
            (self.routed if has_experts else self.dense)(prefix, form),
        )

    def _usual_norm(self, name: str, form: WeightForm) -> nnx.Module:
        return norm_of(self.keys, name)


def _interleaved(keys: ConfigKeys) -> bool:
    named = "rope_interleave" in keys.known.computed
    return keys.flag("rope_interleave", True) if named else True


def latent_shape(keys: ConfigKeys) -> LatentShape:
    plain, rotated = keys.whole("qk_nope_head_dim", 128), keys.whole("qk_rope_head_dim", 64)
    return LatentShape(
        embed=keys.whole("hidden_size"),
        heads=keys.whole("num_attention_heads"),
        plain_dim=plain,
        rotated_dim=rotated,
        value_dim=keys.whole("v_head_dim", 128),
        latent=keys.whole("kv_lora_rank", 512),
        query_latent=keys.whole_or_none("q_lora_rank"),
        scale=(plain + rotated) ** -0.5 * _sharpened(keys),
        biased=keys.flag("attention_bias"),
    )


def _sharpened(keys: ConfigKeys) -> float:
    """Factor that YaRN applies to the score scale (arXiv:2309.00071, section 3.4)."""
    given = keys.get("rope_parameters") or keys.get("rope_scaling") or {}
    if given.get("rope_type", given.get("type", "default")) == "default":
        return 1.0
    all_dims = given.get("mscale_all_dim")
    return yarn_mscale(float(given["factor"]), float(all_dims)) ** 2 if all_dims else 1.0


def spare_layers(keys: ConfigKeys, layers: int) -> tuple[str, ...]:
    """Tensor prefixes of the multi-token-prediction layers."""
    more = keys.whole("num_nextn_predict_layers", 0, least=0)
    return tuple(f"model.layers.{index}." for index in range(layers, layers + more))
