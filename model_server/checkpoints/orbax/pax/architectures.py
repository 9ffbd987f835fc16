"""The variables of the Praxis models that Saxml serves, and the tensors that they become.

Source: the layers of `praxis.layers` and `saxml.server.pax.lm`, and the programs in `saxml/tools`
that write such checkpoints. Llama's rotary pairs are neighbours, as Meta publishes them, and become
halves; GPT-J's stay. Norms of Llama and GPT-J store their scale, all others their scale minus one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from model_server.checkpoints.orbax.dialect import Part

QKV_AXIS = "3"
LAYER_AXIS = "L"


@dataclass(frozen=True, slots=True)
class Target:
    """One tensor inside a variable."""

    name: str  # {layer} is the layer's number
    dims: str  # letters of the variable's axes; those of one dimension together: "HQ,D"
    take: int | None = None  # of the axis of queries, keys and values
    paired: bool = False  # rotary pairs are neighbours on the last axis of the first dimension
    offset: float = 0.0  # added: norms may store their scale minus one


@dataclass(frozen=True, slots=True)
class PaxVariable:
    """A variable. Whoever writes a Pax checkpoint stores each as an array of its own."""

    axes: str
    targets: tuple[Target, ...] = ()  # (): used otherwise
    needed: bool = True

    @property
    def scale(self) -> PaxVariable | None:
        """Return the scale of this variable if it is quantised; None: it never is."""
        summed = next((t.dims.partition(",")[2] for t in self.targets), "")
        return PaxVariable("".join(a for a in self.axes if a not in summed)) if summed else None

    def parts(self, *, stacked: bool) -> tuple[Part, ...]:
        """Return how to read its tensors; `stacked`: all layers lie along its first axis."""
        axes = LAYER_AXIS + self.axes if stacked else self.axes
        return tuple(_part(target, axes) for target in self.targets)


def _part(target: Target, axes: str) -> Part:
    dims = tuple(tuple(map(axes.index, letters)) for letters in target.dims.split(","))
    take = () if target.take is None else ((axes.index(QKV_AXIS), target.take),)
    each = (("layer", 0),) if axes.startswith(LAYER_AXIS) else ()
    return Part(target.name, dims, take, each, offset=target.offset, paired=target.paired)


def one(
    name: str, axes: str, dims: str, *, paired: bool = False, offset: float = 0.0
) -> PaxVariable:
    """Declare a variable that holds one tensor."""
    return PaxVariable(axes, (Target(name, dims, paired=paired, offset=offset),))


PaxVariables = Mapping[str, PaxVariable]  # by path within the model, or within a layer


@dataclass(frozen=True, slots=True)
class ProjectionForms:
    """The forms in which a checkpoint may hold the projections of its attention."""

    combined: bool  # queries, keys and values are one variable
    headless: bool  # the only key and value head has no axis


@dataclass(frozen=True, slots=True)
class Architecture:
    """One kind of Praxis model."""

    model_type: str  # of the config.json that it corresponds to
    title: str
    top: PaxVariables
    layer: Callable[[ProjectionForms], PaxVariables]
    # Letter -> name in Saxml's classes
    sizes: Mapping[str, str]


_SIZES = {
    "L": "NUM_LAYERS",
    "D": "MODEL_DIMS",
    "F": "HIDDEN_DIMS",
    "H": "NUM_HEADS",
    "Q": "DIMS_PER_HEAD",
    "V": "VOCAB_SIZE",
}
_GROUPED = {**_SIZES, "K": "NUM_KV_HEADS"}
_EMBEDDING, _SOFTMAX = "embedding_lookup/emb_var", "softmax/logits_ffn/linear/w"


def _projections(
    prefix: str, attention: ProjectionForms, out: str, *, paired: bool
) -> PaxVariables:
    """Queries, keys, values and output of one layer, under Hugging Face's names."""
    names = [f"{prefix}.{letter}_proj.weight" for letter in "qkv"]
    turns = (paired, paired, False)
    post = {"self_attention/post/w": one(f"{prefix}.{out}.weight", "DHQ", "D,HQ")}
    if attention.combined:
        targets = tuple(
            Target(name, "HQ,D", take=index, paired=turned)
            for index, (name, turned) in enumerate(zip(names, turns, strict=True))
        )
        return {"self_attention/combined_qkv/w": PaxVariable("3DHQ", targets), **post}
    query, key, value = names
    shared, rows = ("DQ", "Q,D") if attention.headless else ("DKQ", "KQ,D")
    return {
        "self_attention/query/w": one(query, "DHQ", "HQ,D", paired=paired),
        "self_attention/key/w": one(key, shared, rows, paired=paired),
        "self_attention/value/w": one(value, shared, rows),
        **post,
    }


def _gated(attention: ProjectionForms, *, paired: bool) -> PaxVariables:
    """A layer of Llama or Gemma."""
    prefix = "model.layers.{layer}"
    return {
        "layer_norm/scale": one(f"{prefix}.input_layernorm.weight", "D", "D"),
        "ff_layer/layer_norm/scale": one(f"{prefix}.post_attention_layernorm.weight", "D", "D"),
        **_projections(f"{prefix}.self_attn", attention, "o_proj", paired=paired),
        "ff_layer/ffn_layer1_gate/linear/w": one(f"{prefix}.mlp.gate_proj.weight", "DF", "F,D"),
        "ff_layer/ffn_layer1/linear/w": one(f"{prefix}.mlp.up_proj.weight", "DF", "F,D"),
        "ff_layer/ffn_layer2/linear/w": one(f"{prefix}.mlp.down_proj.weight", "FD", "D,F"),
    }


def _llama(attention: ProjectionForms) -> PaxVariables:
    return _gated(attention, paired=True)


def _gemma(attention: ProjectionForms) -> PaxVariables:
    return _gated(attention, paired=False)


def _gptj(attention: ProjectionForms) -> PaxVariables:
    prefix = "transformer.h.{layer}"
    return {
        "layer_norm/scale": one(f"{prefix}.ln_1.weight", "D", "D"),
        "layer_norm/bias": one(f"{prefix}.ln_1.bias", "D", "D"),
        **_projections(f"{prefix}.attn", attention, "out_proj", paired=False),
        "ff_layer/ffn_layer1/linear/w": one(f"{prefix}.mlp.fc_in.weight", "DF", "F,D"),
        "ff_layer/ffn_layer1/bias/b": one(f"{prefix}.mlp.fc_in.bias", "F", "F"),
        "ff_layer/ffn_layer2/linear/w": one(f"{prefix}.mlp.fc_out.weight", "FD", "D,F"),
        "ff_layer/ffn_layer2/bias/b": one(f"{prefix}.mlp.fc_out.bias", "D", "D"),
    }


# Multiplies the queries, so it is no tensor of its own (see query_scale.py).
QUERY_SCALE = "self_attention/per_dim_scale/per_dim_scale"


def _plain(attention: ProjectionForms, *, biased: bool) -> PaxVariables:
    """A layer of LmCloudSpmd or C4SpmdGpt3, under the names of `models/saxml/lm_cloud.py`."""
    prefix = "layers.{layer}"
    variables = {
        **_norm("layer_norm", f"{prefix}.before_attention"),
        **_norm("ff_layer/layer_norm", f"{prefix}.before_ffw"),
        "self_attention/combined_qkv/w": one(f"{prefix}.qkv.kernel", "3DHQ", "3HQ,D"),
        "self_attention/post/w": one(f"{prefix}.out.kernel", "DHQ", "D,HQ"),
        "ff_layer/ffn_layer1/linear/w": one(f"{prefix}.up.kernel", "DF", "F,D"),
        "ff_layer/ffn_layer1/bias/b": one(f"{prefix}.up.bias", "F", "F"),
        "ff_layer/ffn_layer2/linear/w": one(f"{prefix}.down.kernel", "FD", "D,F"),
        "ff_layer/ffn_layer2/bias/b": one(f"{prefix}.down.bias", "D", "D"),
    }
    if not biased:
        return {**variables, QUERY_SCALE: PaxVariable("Q", needed=False)}
    return {
        **variables,
        "self_attention/combined_qkv/b": one(f"{prefix}.qkv.bias", "3HQ", "3HQ"),
        "self_attention/post/b": one(f"{prefix}.out.bias", "D", "D"),
    }


def _lm_cloud(attention: ProjectionForms) -> PaxVariables:
    return _plain(attention, biased=False)


def _c4(attention: ProjectionForms) -> PaxVariables:
    return _plain(attention, biased=True)


def _norm(path: str, name: str) -> PaxVariables:
    return {
        f"{path}/scale": one(f"{name}.scale", "D", "D", offset=1.0),
        f"{path}/bias": one(f"{name}.bias", "D", "D"),
    }


LLAMA = Architecture(
    "llama",
    "Llama",
    {
        _EMBEDDING: one("model.embed_tokens.weight", "VD", "V,D"),
        _SOFTMAX: one("lm_head.weight", "DV", "V,D"),
        "final_ln/scale": one("model.norm.weight", "D", "D"),
    },
    _llama,
    _GROUPED,
)
GEMMA = Architecture(
    "gemma",
    "Gemma",
    {
        "softmax/w": one("model.embed_tokens.weight", "VD", "V,D"),
        "final_ln/scale": one("model.norm.weight", "D", "D"),
    },
    _gemma,
    _GROUPED,
)
GPTJ = Architecture(
    "gptj",
    "GPT-J",
    {
        _EMBEDDING: one("transformer.wte.weight", "VD", "V,D"),
        _SOFTMAX: one("lm_head.weight", "DV", "V,D"),
        "softmax/logits_ffn/bias/b": one("lm_head.bias", "V", "V"),
        "final_ln/scale": one("transformer.ln_f.weight", "D", "D"),
        "final_ln/bias": one("transformer.ln_f.bias", "D", "D"),
    },
    _gptj,
    _SIZES,
)
LM_CLOUD = Architecture(
    "saxml_lm_cloud",
    "LmCloudSpmd",
    {
        _SOFTMAX: one("embedding.table", "DV", "V,D"),
        "softmax/logits_ffn/bias/b": one("head.bias", "V", "V"),
        **_norm("final_ln", "final_norm"),
    },
    _lm_cloud,
    _SIZES,
)
C4 = Architecture(
    "saxml_c4",
    "C4SpmdGpt3",
    {
        _SOFTMAX: one("embedding.table", "DV", "V,D"),
        "position_emb/emb_var": one("positions.table", "PD", "P,D"),
        **_norm("final_ln", "final_norm"),
    },
    _c4,
    {**_SIZES, "P": "TRAINABLE_PE_MAX_SEQ_LEN"},
)


def architecture_of(top: set[str], layer: set[str]) -> Architecture | None:
    """Return the kind of model with these variables; None for one that Saxml does not serve."""
    if "softmax/w" in top:
        return GEMMA
    if _SOFTMAX not in top:
        return None
    if _EMBEDDING in top:
        return LLAMA if "ff_layer/ffn_layer1_gate/linear/w" in layer else GPTJ
    return C4 if "position_emb/emb_var" in top else LM_CLOUD
