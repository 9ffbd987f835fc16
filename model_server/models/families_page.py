"""Generates docs/models.md from the registry and the golden cases: `make docs`.

Each family's description and source come from the first lines of its module docstring; the text
around the tables is families_page.md.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from model_server.models.axis_rules import DEFAULT_RULES, LOGICAL
from model_server.models.embedder import EMBEDDER_DEFAULTS, EmbedderFamily
from model_server.models.recipe import SERVING_DEFAULTS, Family, ModelClass
from model_server.models.registry import families, find, make_recipe, model_paths

# What each override key means.
_MEANINGS = {
    "DTYPE": 'of the weights: `"bfloat16"` or `"float32"`',
    "QUANTIZE": '`"int8"`, `"int4"` or `"float8"`, a scale per row or with `":N"` per N columns; '
    '`"stored"`: as the checkpoint has them; null: plain numbers. Matrices that N does not divide '
    "stay plain, which the log says; if that is all of them the load is refused",
    "KV_CACHE_DTYPE": '`"float32"`, `"bfloat16"`, `"int8"` or `"float8_e4m3fn"` (the last two with '
    "a scale per head and token); null: float32 on a CPU, elsewhere as `DTYPE`",
    "ICI_MESH_SHAPE": "devices on the axes replica, data, model; null: every device, on model",
    "NUM_STAGES": "groups of hosts that hold the layers in turn; each has the mesh above",
    "SHARDING_RULES": "which mesh axis divides each logical axis of the model: an object, as "
    '`{"experts": "data", "tokens": "data"}`; null as a value: never divided (see below)',
    "MAX_CONTEXT": "tokens of a prompt and its answer; null: the model's own",
    "NUM_CACHE_SLOTS": "sequences that decode at once; null: the server's `--slots`",
    "NUM_SAMPLES": "answers of one Saxml Generate call",
    "TEMPERATURE": "of a Saxml call that gives none; 0: the likeliest token",
    "TOP_K": "of a Saxml call that gives none; 0: all tokens",
    "TOP_P": "of a Saxml call that gives none",
    "QUERY_FORMAT": 'a Saxml query is a user\'s turn (`"chat"`) or the bare text (`"raw"`); null: '
    "chat where the checkpoint has a chat template",
    "MAX_DECODE_STEPS": "tokens of an answer to a Saxml call that gives no "
    "`per_example_max_decode_steps`; of Saxml's classes also part of the context",
    "PER_EXAMPLE_MAX_DECODE_STEPS": "the same, where it is less than `MAX_DECODE_STEPS`",
    "INPUT_SEQ_LEN": "with `MAX_DECODE_STEPS`: the context",
    "BATCH_SIZE": "requests that decode at once, where `NUM_CACHE_SLOTS` is null",
    "EOS_ID": "ends an answer, in place of what the tokenizer says; null: the tokenizer's",
    "STOP_TOKEN_IDS": "the same for several",
    "USE_BEAM_SEARCH": "true is refused: there is no beam search here",
    "NUM_LAYERS": "size of the model",
    "MODEL_DIMS": "size of the model",
    "HIDDEN_DIMS": "size of the model: its feed-forward width",
    "NUM_HEADS": "size of the model",
    "NUM_KV_HEADS": "size of the model; null: as many as heads",
    "DIMS_PER_HEAD": "size of the model",
    "VOCAB_SIZE": "size of the model",
    "ROTARY_DIM": "size of the model: how much of a head is rotated",
    "MAX_POSITION_EMBEDDINGS": "positions that the model was made for: the longest context",
    "TRAINABLE_PE_MAX_SEQ_LEN": "positions that the model has learned vectors for",
}

_LOGICAL = {
    "vocab": "the rows of the embedding and of the head",
    "heads": "queries, keys and values, and the pages that hold them",
    "ffw": "the width of feed-forwards, and of each expert",
    "experts": "the experts of a layer",
    "embed": "the model's width, in every matrix",
    "tokens": "the rows of a step: decoding sequences and tokens of prompts",
}
assert tuple(_LOGICAL) == LOGICAL, "say what each logical axis divides"

ROOT = Path(__file__).parents[2]
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


def page() -> str:
    """Return the whole page as Markdown."""
    cases = golden_cases()
    paths = [find(path) for path in model_paths() if path.startswith(_SAXML)]
    classes = [entry for entry in paths if isinstance(entry, ModelClass)]
    filled = {
        "families": _table(
            ("model path", "models", "`model_type`", "what is computed", "source", "golden cases"),
            (_family_row(family, cases) for family in families()),
        ),
        "saxml_cases": ", ".join(f"`{name}`" for key in cases for name in cases[key] if "." in key),
        "saxml_paths": _table(
            ("path", "parameters", "sizes", "mesh", "context", "other values"),
            _class_rows(classes),
        ),
        "overrides": _overrides_table(classes),
        "rules": _table(
            ("logical axis", "divides", "by default over"),
            (
                (f"`{name}`", meaning, f"`{DEFAULT_RULES.of(name) or 'null'}`")
                for name, meaning in _LOGICAL.items()
            ),
        ),
    }
    text = Path(__file__).with_suffix(".md").read_text()
    return re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], text)


def golden_cases() -> dict[str, list[str]]:
    """Folders of tests/golden/families by model_type, or by the path of a Saxml class."""
    found: dict[str, list[str]] = {}
    for folder in sorted((ROOT / "tests" / "golden" / "families").iterdir()):
        config = json.loads((folder / "config.json").read_text())
        key = config.get("model_type") or config["model_path"]
        found.setdefault(key, []).append(folder.name)
    return found


def described(family: Family | EmbedderFamily) -> tuple[str, str]:
    """Description and papers from the family's module docstring."""
    module = sys.modules[family.configure.__module__]
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


def _family_row(
    family: Family | EmbedderFamily, cases: Mapping[str, Sequence[str]]
) -> Sequence[str]:
    computed, papers = described(family)
    return (
        f"`{family.path}`",
        family.title,
        ", ".join(f"`{name}`" for name in family.model_types),
        f"{computed} ([code]({_link(sys.modules[family.configure.__module__])}))",
        papers,
        ", ".join(f"`{name}`" for key in family.model_types for name in cases.get(key, ())),
    )


def _link(module: ModuleType) -> str:
    """Link to a module's file, relative to docs/."""
    assert module.__file__ is not None
    return f"../{Path(module.__file__).relative_to(ROOT).as_posix()}"


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
    """Table of every override key, with its default by kind of model."""
    defaults = [SERVING_DEFAULTS, EMBEDDER_DEFAULTS]
    keys = dict.fromkeys(key for found in (*defaults, *_values(classes)) for key in found)
    head = ("override", "families", "embedding models", "Saxml's classes", "meaning")
    return _table(head, (_override_row(key, classes) for key in keys))


def _override_row(key: str, classes: Sequence[ModelClass]) -> Sequence[str]:
    assert key in _MEANINGS, f"say in {__name__} what the override {key} means"
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


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(page())
