"""Makes docs/reference/models.md from the registry and golden cases (tests/docs/models_page.py).

Each family's description and source come from the first lines of its module docstring; the text
around the tables is families_page.md.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from model_server.models.audio.audio_recipe import AudioClass
from model_server.models.audio.synthesizer_recipe import SynthesizerClass
from model_server.models.layers.embedder import EMBEDDER_DEFAULTS, EmbedderFamily
from model_server.models.recipe import SERVING_DEFAULTS, Family, ModelClass
from model_server.models.registry import families, find, make_recipe, model_paths
from model_server.models.transformers.transformers import COMPARED
from model_server.models.vision.vision_recipe import VisionClass
from model_server.models.weights.sharding import DEFAULT_RULES, LOGICAL

# What each override key means.
_MEANINGS = {
    "DTYPE": 'dtype of the weights: `"bfloat16"` or `"float32"`',
    "QUANTIZE": '`"int8"`, `"int4"` or `"float8"`, a scale per row or, with `":N"`, per N columns; '
    '`"stored"`: as in the checkpoint; null: unquantised. Matrices whose columns N does not '
    "divide stay unquantised, with a log line; the load fails if none could be quantised",
    "ACTIVATIONS": '`"int8"`: the native CPU kernels multiply matrices of 4 and 8 bits with one '
    "int8 of each number, in steps of at most 64 numbers' own: half the work, and a KL divergence "
    "of 0.002 to 0.005 more; null: with two, which lose nothing visible "
    "([quantising](../how_to/quantising.md#activations-in-one-byte))",
    "KV_CACHE_DTYPE": '`"float32"`, `"bfloat16"`, `"int8"` or `"float8_e4m3fn"` (the last two with '
    "a scale per head and token); null: `DTYPE`, or float32 on CPUs without the native kernels",
    "ICI_MESH_SHAPE": "devices on the axes replica, data, model; null: all devices on model, or "
    "one device if the model makes no tokens or writes down sounds",
    "NUM_STAGES": "pipeline stages, each a group of hosts, or an island, with the mesh above",
    "MAX_ADAPTERS": "LoRA adapters of this model in memory at once, from 0 (none) to 256 "
    "(see below)",
    "MAX_ADAPTER_RANK": "rank of such an adapter, at most 512",
    "RETURN_ROUTED_EXPERTS": "true: answers can tell which experts each token used, for requests "
    "with `return_routed_experts` ([training.md](../how_to/training.md#replay-the-routes))",
    "SPECULATION": 'draft tokens: `"off"`; `"ngram"`: what followed the last ones '
    'before; `"draft"`: also those of a draft model; `"mtp"`: also those of the draft layers in '
    'the checkpoint; null: as `"ngram"`, in rows of the decode batch that are not used '
    "([speculation.md](../explanation/speculation.md))",
    "MAX_GUESSES": "most draft tokens of one sequence in one step, of models with states of all, "
    "from 1 to 32",
    "DRAFT_MODEL": "a smaller model with the same vocabulary for draft tokens, or an EAGLE-3 head: "
    "a checkpoint, or a model path that needs none",
    "DRAFT_QUANTIZE": "`QUANTIZE` of the draft model or head",
    "SHARDING_RULES": "mesh axis for each logical axis of the model: an object such as "
    '`{"experts": "data", "tokens": "data"}`; a null value: replicated (see below)',
    "MAX_CONTEXT": 'most tokens of a prompt and its answer; `"auto"`: as many as memory holds in '
    "every slot; null: the model's own limit",
    "KV_CACHE_BYTES": "bytes of KV pages on each device; null: the server's `--kv_cache_bytes`",
    "NUM_CACHE_SLOTS": "concurrent sequences; null: the server's `--slots`",
    "NUM_SAMPLES": "answers per Saxml Generate call",
    "TEMPERATURE": "default of Saxml calls; 0: greedy",
    "TOP_K": "default of Saxml calls; 0: all tokens",
    "TOP_P": "default of Saxml calls",
    "QUERY_FORMAT": 'a Saxml query is a user turn (`"chat"`) or bare text (`"raw"`); null: '
    "chat if the checkpoint has a chat template. The prefix of Score is such a query, and its "
    "suffix the answer",
    "CHAT_TEMPLATE": "template of chats, in Jinja; null: the checkpoint's "
    "([tools.md](../how_to/tools.md))",
    "TOOL_PARSER": 'form in which the model writes calls of tools: `"hermes"`, `"llama3"`, '
    '`"mistral"`, `"gemma"`, `"deepseek"`, `"gpt_oss"` or `"none"`; null: as its template tells',
    "REASONING_PARSER": 'form in which it writes its reasoning: `"think"`, `"gpt_oss"` or '
    '`"none"`; null: as its template tells',
    "TASKS": 'a list of `"generate"`, `"embed"`, `"classify"`, `"gradient"`, or `"rerank"` alone; '
    "null: as the checkpoint says ([vectors.md](../how_to/vectors.md))",
    "POOLING": 'of embeddings: `"cls"`, `"mean"`, `"max"` or `"last"`; null: as the checkpoint '
    "says, else the last token of a decoder and the mean of an encoder",
    "NORMALIZE": "embeddings have length 1; null: as the checkpoint says",
    "MATRYOSHKA": "requests may ask for shorter embeddings: true for any, or a list of sizes; "
    "null: as the checkpoint says",
    "CLASSIFY_ACTIVATION": 'makes scores of logits: `"softmax"`, `"sigmoid"` or `"none"`; null: as '
    "the checkpoint says",
    "RERANK_TOKENS": "makes a reranker: texts of the tokens that say that a document fits a query, "
    "and that it does not; null: as the checkpoint says "
    "([vectors.md](../how_to/vectors.md#ranking-and-scores))",
    "PASS_CONTEXT": "most tokens of an input to embed or differentiate if the model generates, too",
    "IMAGES": "images in prompts: true: a load that cannot see them is refused; false: text only, "
    "and the encoder is neither read nor planned for; null: if the checkpoint and the server can "
    "(see [images in prompts](#images-in-prompts))",
    "SOUNDS": "the same of sounds in prompts (see [sounds in prompts](#sounds-in-prompts))",
    "IMAGE_PIXELS": "most pixels of an image, above which it is made smaller, where images keep "
    "their proportions (Qwen-VL, Kimi, GLM, MiniMax; of Pixtral's tower no side is longer than its "
    "root; of Gemma 4 the largest budget of tokens that is no more); null: the checkpoint's bound, "
    "or what becomes 1280 tokens if that is less",
    "MEDIA_ROWS": "vectors of images that are kept in memory at once, for all requests; at least "
    "those of two images of the largest size; null: these, or 4096 if that is more",
    "GRADIENT_WRT_INPUT_TENSOR_NAMES": 'Gradient differentiates by `"embeddings"`, `"weights"` (of '
    "the tokens in the loss), or both; null: `embeddings`",
    "GRADIENT_WRT_MDL_VAR_TENSOR_NAMES": "and by these weights of the model, such as "
    '`"final_norm.scale"`',
    "TOKENIZED_INPUT": 'a Saxml query is a list of token ids, such as `"5,6,7"`, after the start '
    "token if the model has one",
    "TOKENIZED_OUTPUT": "a Saxml answer is a list of token ids, including the end token",
    "MAX_DECODE_STEPS": "most tokens of an answer to a Saxml call without "
    "`per_example_max_decode_steps`; for Saxml's classes also part of the context",
    "PER_EXAMPLE_MAX_DECODE_STEPS": "lowers that default, if less than `MAX_DECODE_STEPS`",
    "INPUT_SEQ_LEN": "plus `MAX_DECODE_STEPS`: the context",
    "BATCH_SIZE": "concurrent requests, if `NUM_CACHE_SLOTS` is null; of a list of sizes the "
    "largest, and steps of each are compiled",
    "MAX_SEQ_LEN": "the context, instead of `INPUT_SEQ_LEN` and `MAX_DECODE_STEPS`",
    "SORT_SAMPLES": "samples of a Saxml call come best first, else as they were drawn",
    "EXTRA_INPUTS": "defaults of Saxml calls, in the names of extra inputs; null: as "
    "`TEMPERATURE`, `TOP_K`, `TOP_P` and `PER_EXAMPLE_MAX_DECODE_STEPS` say",
    "INCLUDE_PREFIX_IN_RESULT": "answers of Saxml calls begin with their query",
    "GENERATION_USE_GEOMEAN_PROB_SCORE": "the score of a sample is the geometric mean of its "
    "tokens' probabilities",
    "SCORING_USE_GEOMEAN_PROB_SCORE": "likewise of Score",
    "SCORING_INCLUDE_EOS_SCORE": "Score counts the end token after each suffix (`EOS_ID`, else the "
    "tokenizer's)",
    "GENERATE_ONLY": "true: Score is not served",
    "SCORE_ONLY": "Generate and GenerateStream are not served",
    "ENABLE_GENERATE": "false: Generate is not served, only GenerateStream",
    "QUANTIZE_KV": '`KV_CACHE_DTYPE="int8"`',
    "EOS_ID": "token that ends an answer; null: the tokenizer's",
    "STOP_TOKEN_IDS": "likewise, a list of tokens",
    "USE_BEAM_SEARCH": "answers of a Saxml call are those of a beam search, not samples",
    "BEAM_SIZE": "beam search: hypotheses kept after each token, and answers",
    "TOKENS_PER_BEAM": "beam search: tokens that each hypothesis offers after each token; null: "
    "`BEAM_SIZE`",
    "LENGTH_NORM_ALPHA": "beam search: scores are log-probabilities divided by "
    "((tokens + 5) / 5) to this power",
    "BEAM_SEARCH_EARLY_EXIT": "beam search: it ends as soon as all hypotheses hold an end token",
    "MIN_DECODE_STEPS": "beam search: tokens of an answer before its end token",
    "NUM_LAYERS": "size of the model",
    "MODEL_DIMS": "size of the model",
    "HIDDEN_DIMS": "size of the model: its feed-forward width",
    "NUM_HEADS": "size of the model",
    "NUM_KV_HEADS": "size of the model; null: same as heads",
    "DIMS_PER_HEAD": "size of the model",
    "VOCAB_SIZE": "size of the model",
    "ROTARY_DIM": "size of the model: rotated dimensions per head",
    "MAX_POSITION_EMBEDDINGS": "positions the model was trained for: the longest context",
    "TRAINABLE_PE_MAX_SEQ_LEN": "positions with learned embeddings",
}

_LOGICAL = {
    "vocab": "rows of the embedding and the head",
    "heads": "queries, keys and values, and their pages",
    "ffw": "width of feed-forwards and of each expert",
    "experts": "experts of a layer",
    "embed": "width of the model, in every matrix",
    "tokens": "rows of a step: decoding sequences and prompt tokens",
}
assert tuple(_LOGICAL) == LOGICAL, "describe what each logical axis shards"

ROOT = Path(__file__).parents[2]
_GOLDEN = ROOT / "tests" / "golden" / "families"
_SEEN = ROOT / "tests" / "golden" / "seen"
_MEDIA = ROOT / "tests" / "golden" / "media"
PLANNED = ROOT / "model_server" / "plan" / "configs"
_SAXML = "saxml.server.pax.lm.params."
_SIZES = {
    "L": "NUM_LAYERS",
    "D": "MODEL_DIMS",
    "F": "HIDDEN_DIMS",
    "H": "NUM_HEADS",
    "K": "NUM_KV_HEADS",
    "Q": "DIMS_PER_HEAD",
    "V": "VOCAB_SIZE",
}
_POSITIONS = "TRAINABLE_PE_MAX_SEQ_LEN"
# Columns of serving values in the table of Saxml's paths; the mesh and the context have their own.
_SERVED = {
    "DTYPE": "DTYPE",
    "QUANTIZE": "QUANTIZE",
    "BATCH_SIZE": "batch",
    "NUM_CACHE_SLOTS": "slots",
    "NUM_SAMPLES": "samples",
    "TEMPERATURE": "temperature",
    "TOP_K": "top-k",
    "TOP_P": "top-p",
}


def page(tested: str) -> str:
    """tested: the table of what tests show of each family."""
    cases = golden_cases()
    paths = [find(path) for path in model_paths() if path.startswith(_SAXML)]
    classes = [entry for entry in paths if isinstance(entry, ModelClass)]
    filled = {
        "families": table(
            ("model path", "models", "`model_type`", "architecture", "source", "golden cases"),
            (_family_row(family, cases) for family in families()),
        ),
        "tested": tested,
        "traced": ", ".join(f"`{name}`" for name in COMPARED),
        "saxml_cases": ", ".join(f"`{name}`" for key in cases for name in cases[key] if "." in key),
        "saxml_paths": table(
            ("path", "parameters", "sizes", "mesh", "context", "other values"),
            _class_rows(classes),
        ),
        "overrides": _overrides_table(classes),
        "vision": serving_table(VisionClass),
        "audio": serving_table(AudioClass),
        "speech": serving_table(SynthesizerClass),
        "rules": table(
            ("logical axis", "shards", "default mesh axis"),
            (
                (f"`{name}`", meaning, f"`{DEFAULT_RULES.of(name) or 'null'}`")
                for name, meaning in _LOGICAL.items()
            ),
        ),
    }
    text = Path(__file__).with_suffix(".md").read_text()
    return re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], text)


def serving_table(
    kind: type[VisionClass] | type[AudioClass] | type[SynthesizerClass],
) -> str:
    """The models of images, of sounds or of speech, with the values that a publish may change."""
    found = [entry for path in model_paths() if isinstance(entry := find(path), kind)]
    return table(
        ("model path", "`model_type`", "checkpoint", "defaults"),
        (
            (
                f"`{entry.path}`",
                ", ".join(f"`{name}`" for name in entry.model_types),
                "needed" if entry.needs_checkpoint else "or `None`",
                ", ".join(f"{key} {json.dumps(value)}" for key, value in entry.overridable.items()),
            )
            for entry in found
        ),
    )


def golden_cases() -> dict[str, list[str]]:
    """Folders of tests/golden/families by model_type, or by the path of a Saxml class.

    Those of towers of texts and images are folders of tests/golden/seen; of families that no case
    without images is of, those of tests/golden/media.
    """
    found: dict[str, list[str]] = {}
    for folder in sorted(_GOLDEN.iterdir()):
        found.setdefault(_key_of(folder), []).append(folder.name)
    of = [{*family.model_types} for family in families()]
    own = set[str]().union(*(names for names in of if not names & found.keys()))
    for folder in (*sorted(_SEEN.iterdir()), *sorted(_MEDIA.iterdir())):
        if (key := _key_of(folder)) in own:
            found.setdefault(key, []).append(folder.name)
    return found


def _key_of(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text())
    return config.get("model_type") or config["model_path"]


def described(family: Family | EmbedderFamily) -> tuple[str, str]:
    """Description and papers from the family's module docstring."""
    module = import_module(family.configure.__module__)
    text = module.__doc__ or ""
    first = text.partition("\n")[0].rstrip(".")
    source = re.search(r"^Source: (.*?)(?:;|\.?\n\n|\.?\Z)", text, re.MULTILINE | re.DOTALL)
    assert source, f"{module.__name__} has no line 'Source: ...; names and config keys ...'"
    papers = re.sub(
        r"(?:https://arxiv\.org/abs/|arXiv:)(\d{4}\.\d{5}|\d{4}\.\d{4})",
        r"[\1](https://arxiv.org/abs/\1)",
        " ".join(source[1].split()),
    )
    return first.partition(": ")[2] or first, papers


def anchor_of(family: Family | EmbedderFamily) -> str:
    """The target of links to a family's row."""
    return f"family-{family.path}"


def _family_row(
    family: Family | EmbedderFamily, cases: Mapping[str, Sequence[str]]
) -> Sequence[str]:
    computed, papers = described(family)
    return (
        f'<a id="{anchor_of(family)}"></a>`{family.path}`',
        family.title,
        ", ".join(f"`{name}`" for name in family.model_types),
        f"{computed} ([code]({_link(import_module(family.configure.__module__))}))",
        papers,
        ", ".join(f"`{name}`" for key in family.model_types for name in cases.get(key, ())),
    )


def _link(module: ModuleType) -> str:
    assert module.__file__ is not None
    return f"../../{Path(module.__file__).relative_to(ROOT).as_posix()}"


def _class_rows(classes: Iterable[ModelClass]) -> Iterable[Sequence[str]]:
    counted: dict[Any, int] = {}  # classes of one size differ only in their mesh
    for entry in classes:
        values = entry.overridable
        sizes = tuple(values.get(key) for key in (*_SIZES.values(), _POSITIONS))
        key = (entry.path.rpartition(".")[0], sizes)
        if key not in counted:
            counted[key] = parameters(entry.path)
        yield (
            f"`{entry.path.removeprefix(_SAXML)}`",
            f"{counted[key] / 1e9:.2f} B",
            " ".join(f"{letter}{values[k]}" for letter, k in _SIZES.items() if values.get(k)),
            str(values["ICI_MESH_SHAPE"] or "all devices"),
            f"{values['INPUT_SEQ_LEN']} + {values['MAX_DECODE_STEPS']}",
            ", ".join(f"{text} {values[k]}" for k, text in _SERVED.items() if _is_told(values, k)),
        )


def _is_told(values: Mapping[str, Any], key: str) -> bool:
    usual = SERVING_DEFAULTS["DTYPE"] if key == "DTYPE" else None
    return values[key] not in (None, usual)


def parameters(path: str) -> int:
    """Count a class's parameters without allocating them."""
    declared = make_recipe(path, None, {"QUANTIZE": "null"}).blueprint().declarations
    return sum(math.prod(weight.shape) for weight in declared)


def _overrides_table(classes: Sequence[ModelClass]) -> str:
    defaults = [SERVING_DEFAULTS, EMBEDDER_DEFAULTS]
    keys = dict.fromkeys(key for found in (*defaults, *_values(classes)) for key in found)
    head = ("override", "families", "embedding models", "Saxml's classes", "meaning")
    return table(head, (_override_row(key, classes) for key in keys))


def _override_row(key: str, classes: Sequence[ModelClass]) -> Sequence[str]:
    assert key in _MEANINGS, f"describe the override {key} in {__name__}"
    of_classes = {_json(values[key]) for values in _values(classes) if key in values}
    return (
        f"`{key}`",
        _json(SERVING_DEFAULTS[key]) if key in SERVING_DEFAULTS else "-",
        _json(EMBEDDER_DEFAULTS[key]) if key in EMBEDDER_DEFAULTS else "-",
        of_classes.pop() if len(of_classes) == 1 else "by class" if of_classes else "-",
        _MEANINGS[key],
    )


def _values(classes: Sequence[ModelClass]) -> Iterable[Mapping[str, Any]]:
    return (entry.overridable for entry in classes)


def _json(value: Any) -> str:
    return f"`{json.dumps(value)}`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
