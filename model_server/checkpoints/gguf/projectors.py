"""Encoders of pictures as llama.cpp's converter writes them, one declaration for each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from model_server.checkpoints.gguf.architecture import Config
from model_server.checkpoints.gguf.facts import Facts
from sax.errors import CheckpointError

FRAMES = ("v.patch_embd", "v.patch_embd.1")  # of a pair of pictures


@dataclass(frozen=True, kw_only=True)
class GgufProjector:
    """How the converter writes one kind of encoder, and how its tensors and sizes are read back."""

    texts: Mapping[str, str]  # model_type of the text's file -> of a text model with this encoder
    token: str  # whose places the vectors take
    tensors: Mapping[str, tuple[str, ...]]  # name in a folder -> parts in the file, less .weight
    layers: str  # a layer's prefix in a folder
    layer_tensors: Mapping[str, tuple[str, ...]]
    vision: Callable[[Facts, dict[str, Any]], dict[str, Any]]  # vision_config, of common sizes
    outer: Callable[[Facts, dict[str, Any]], dict[str, Any]] = lambda facts, vision: {}
    plus_one: tuple[str, ...] = ()  # names in a folder
    rotated: tuple[str, ...] = ()  # of a layer
    whole: tuple[str, ...] = ()  # names in a folder that end in neither .weight nor .bias
    ignored: tuple[str, ...] = ()  # tensors of the file
    # More tensors, by vision_config
    more: Callable[[Config], Mapping[str, tuple[str, ...]]] = lambda vision: {}

    def places(self, layers: int, vision: Config) -> Iterator[tuple[str, tuple[str, ...], str]]:
        """Yield each name in a folder, the names of its parts, and its name inside a layer."""
        for name, parts in {**self.tensors, **self.more(vision)}.items():
            yield from self._with_ends(name, parts, "")
        for layer in range(layers):
            for name, parts in self.layer_tensors.items():
                own = tuple(f"v.blk.{layer}.{part}" for part in parts)
                yield from self._with_ends(f"{self.layers}.{layer}.{name}", own, name)

    def _with_ends(
        self, name: str, parts: tuple[str, ...], inside: str
    ) -> Iterator[tuple[str, tuple[str, ...], str]]:
        if name in self.whole:
            yield name, tuple(f"{part}.weight" for part in parts), inside
            return
        if parts == FRAMES:  # of filters; their bias is one
            yield f"{name}.weight", (f"{parts[0]}.weight", f"{parts[0]}.weight.1"), inside
            yield f"{name}.bias", (f"{parts[0]}.bias",), inside
            return
        for end in ("weight", "bias"):
            yield f"{name}.{end}", tuple(f"{part}.{end}" for part in parts), inside


def _gemma3_outer(facts: Facts, vision: dict[str, Any]) -> dict[str, Any]:
    side = vision["image_size"] // vision["patch_size"]
    scale = facts.whole("vision.projector.scale_factor", 4)
    return {"mm_tokens_per_image": (side // scale) ** 2}


def _qwen(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that all of Qwen's towers have."""
    facts.get("vision.image_size")  # of the pictures that llama.cpp tries out
    return {
        "depth": sizes["num_hidden_layers"],
        "num_heads": sizes["num_attention_heads"],
        "patch_size": sizes["patch_size"],
        "spatial_merge_size": facts.whole("vision.spatial_merge_size", 2),
        "temporal_patch_size": 2,
    }


def _qwen2(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    return {
        **_qwen(facts, sizes),
        "embed_dim": sizes["hidden_size"],
        "hidden_size": facts.whole("vision.projection_dim"),
        "mlp_ratio": sizes["intermediate_size"] / sizes["hidden_size"],
        "hidden_act": "quick_gelu",
    }


def _qwen2_5(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    """Every n-th layer sees all patches; windows are as published, for there is no key."""
    period = facts.whole("vision.n_wa_pattern")
    return {
        **_qwen(facts, sizes),
        "hidden_size": sizes["hidden_size"],
        "intermediate_size": sizes["intermediate_size"],
        "out_hidden_size": facts.whole("vision.projection_dim"),
        "fullatt_block_indexes": list(range(period - 1, sizes["num_hidden_layers"], period)),
        "window_size": 8 * sizes["patch_size"],
        "hidden_act": "silu",
    }


def _qwen3(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    layers = sizes["num_hidden_layers"]
    deep = facts.listed("vision.is_deepstack_layers", layers, [False] * layers)
    return {
        **_qwen(facts, sizes),
        "hidden_size": sizes["hidden_size"],
        "intermediate_size": sizes["intermediate_size"],
        "out_hidden_size": facts.whole("vision.projection_dim"),
        "num_position_embeddings": facts.rows("v.position_embd.weight"),
        "deepstack_visual_indexes": [at for at, is_deep in enumerate(deep) if is_deep],
        "hidden_act": "gelu_pytorch_tanh",
    }


def _deep(vision: Config) -> dict[str, tuple[str, ...]]:
    return {
        f"visual.deepstack_merger_list.{index}.{name}": (f"v.deepstack.{layer}.{part}",)
        for index, layer in enumerate(vision["deepstack_visual_indexes"])
        for name, part in (("norm", "norm"), ("linear_fc1", "fc1"), ("linear_fc2", "fc2"))
    }


def _pixtral(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in sizes.items() if key != "layer_norm_eps"}
    return {
        **kept,
        "head_dim": sizes["hidden_size"] // sizes["num_attention_heads"],
        "hidden_act": "silu" if facts.flag("use_silu", False) else "gelu",
        "rope_theta": 10000.0,
    }


def _mistral3_outer(facts: Facts, vision: dict[str, Any]) -> dict[str, Any]:
    if not facts.has("mm.patch_merger.weight"):
        raise CheckpointError("its projector merges no patches; of such encoders none is read")
    return {
        "spatial_merge_size": facts.whole("vision.spatial_merge_size", 2),
        "multimodal_projector_bias": facts.has("mm.1.bias"),
        "vision_feature_layer": -1,
    }


_QWEN_LAYER = {
    "norm1": ("ln1",),
    "norm2": ("ln2",),
    "attn.proj": ("attn_out",),
    "attn.qkv": ("attn_q", "attn_k", "attn_v"),
}
_QWEN_FRAMES = {"visual.patch_embed.proj": FRAMES}
_QWEN2_TENSORS = {
    **_QWEN_FRAMES,
    "visual.merger.ln_q": ("v.post_ln",),
    "visual.merger.mlp.0": ("mm.0",),
    "visual.merger.mlp.2": ("mm.2",),
}
_IMAGE_PAD = "<|image_pad|>"

PROJECTORS: Mapping[str, GgufProjector] = {
    "gemma3": GgufProjector(
        texts={"gemma3_text": "gemma3_text"},
        token="<image_soft_token>",
        tensors={
            "vision_tower.embeddings.patch_embedding": ("v.patch_embd",),
            "vision_tower.embeddings.position_embedding": ("v.position_embd",),
            "vision_tower.post_layernorm": ("v.post_ln",),
            "multi_modal_projector.mm_soft_emb_norm": ("mm.soft_emb_norm",),
            "multi_modal_projector.mm_input_projection_weight": ("mm.input_projection",),
        },
        layers="vision_tower.encoder.layers",
        layer_tensors={
            "layer_norm1": ("ln1",),
            "layer_norm2": ("ln2",),
            "self_attn.q_proj": ("attn_q",),
            "self_attn.k_proj": ("attn_k",),
            "self_attn.v_proj": ("attn_v",),
            "self_attn.out_proj": ("attn_out",),
            "mlp.fc1": ("ffn_up",),
            "mlp.fc2": ("ffn_down",),
        },
        vision=lambda facts, sizes: sizes | {"hidden_act": "gelu_pytorch_tanh"},
        outer=_gemma3_outer,
        plus_one=("multi_modal_projector.mm_soft_emb_norm.weight",),
        whole=("multi_modal_projector.mm_input_projection_weight",),
    ),
    "qwen2vl_merger": GgufProjector(
        texts={"qwen2_5_vl_text": "qwen2_vl_text"},
        token=_IMAGE_PAD,
        tensors=_QWEN2_TENSORS,
        layers="visual.blocks",
        layer_tensors={**_QWEN_LAYER, "mlp.fc1": ("ffn_up",), "mlp.fc2": ("ffn_down",)},
        vision=_qwen2,
    ),
    "qwen2.5vl_merger": GgufProjector(
        texts={"qwen2_5_vl_text": "qwen2_5_vl_text"},
        token=_IMAGE_PAD,
        tensors=_QWEN2_TENSORS,
        layers="visual.blocks",
        layer_tensors={
            **_QWEN_LAYER,
            "mlp.gate_proj": ("ffn_gate",),
            "mlp.up_proj": ("ffn_up",),
            "mlp.down_proj": ("ffn_down",),
        },
        vision=_qwen2_5,
    ),
    "qwen3vl_merger": GgufProjector(
        texts={
            name: name
            for name in ("qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_5_text", "qwen3_5_moe_text")
        },
        token=_IMAGE_PAD,
        tensors={
            **_QWEN_FRAMES,
            "visual.pos_embed": ("v.position_embd",),
            "visual.merger.norm": ("v.post_ln",),
            "visual.merger.linear_fc1": ("mm.0",),
            "visual.merger.linear_fc2": ("mm.2",),
        },
        layers="visual.blocks",
        layer_tensors={
            **_QWEN_LAYER,
            "attn.qkv": ("attn_qkv",),
            "mlp.linear_fc1": ("ffn_up",),
            "mlp.linear_fc2": ("ffn_down",),
        },
        vision=_qwen3,
        more=_deep,
    ),
    "pixtral": GgufProjector(
        texts={"llama": "mistral", "mistral": "mistral", "ministral3": "ministral3"},
        token="[IMG]",
        tensors={
            "vision_tower.patch_conv": ("v.patch_embd",),
            "vision_tower.ln_pre": ("v.pre_ln",),
            "multi_modal_projector.norm": ("mm.input_norm",),
            "multi_modal_projector.patch_merger.merging_layer": ("mm.patch_merger",),
            "multi_modal_projector.linear_1": ("mm.1",),
            "multi_modal_projector.linear_2": ("mm.2",),
        },
        layers="vision_tower.transformer.layers",
        layer_tensors={
            "attention_norm": ("ln1",),
            "ffn_norm": ("ln2",),
            "attention.q_proj": ("attn_q",),
            "attention.k_proj": ("attn_k",),
            "attention.v_proj": ("attn_v",),
            "attention.o_proj": ("attn_out",),
            "feed_forward.gate_proj": ("ffn_gate",),
            "feed_forward.up_proj": ("ffn_up",),
            "feed_forward.down_proj": ("ffn_down",),
        },
        vision=_pixtral,
        outer=_mistral3_outer,
        rotated=("attention.q_proj", "attention.k_proj"),
        ignored=("v.token_embd.img_break",),
    ),
}
