"""Small folders as sentence-transformers writes them, and its vectors and scores.

A folder holds the small files of a checkpoint: config.json, which is given, modules.json, the
modules' own, tokenizer.json; tensors.json (file -> name -> shape) and golden.json: texts and their
vectors, or pairs and their scores. Weights follow from their names (see random_tensor).
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from tests.golden.random_tensor import random_tensor
from tests.tools.golden import common

FOLDER = common.GOLDEN / "sentences"
CONTROL = ("<pad>", "<eos>", "<bos>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
YES, NO = 95, 84  # the letters y and n
TEXTS = ["hello", "The tide came in.", "Zürich liegt am See, und das seit langem schon."]
PAIRS = [
    ["capital of China?", "Beijing."],
    ["gravity", "A force between masses."],
    ["ships", ""],
]
# As Qwen3-Reranker's folder has it for sentence-transformers.
RERANKER_CHAT = (
    "<|im_start|>system\nAnswer yes or no.<|im_end|>\n<|im_start|>user\n<Instruct>: "
    "{{ messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first }}\n"
    "<Query>: {{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}"
    "\n<Document>: "
    "{{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def tokenizer(frame: str, pair: str | None = None) -> Any:
    """Bytes and a few control tokens; frame, pair: around texts, as tokenizers write it."""
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers, processors

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(
        models.BPE({token: i for i, token in enumerate([*CONTROL, *letters])}, [])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(CONTROL))
    special = [(token, i) for i, token in enumerate(CONTROL)]
    made.post_processor = processors.TemplateProcessing(
        single=frame, pair=pair or "$A $B", special_tokens=special
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>"
    )


def encoder_files(
    folder: Path, config: dict[str, Any], auto: str, frame: str, pair: str | None = None
) -> None:
    """Write a transformers folder with random weights."""
    import transformers

    common.write_json(folder / "config.json", config)
    read = transformers.AutoConfig.from_pretrained(folder)
    getattr(transformers, auto).from_config(read).save_pretrained(folder)
    common.write_json(folder / "config.json", config)
    tokenizer(frame, pair).save_pretrained(folder)


def embeddinggemma(folder: Path, config: dict[str, Any]) -> Any:
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    encoder_files(folder, config, "AutoModel", "<bos> $A <eos>")
    size = config["hidden_size"]
    modules = [
        Transformer(str(folder), max_seq_length=128),
        Pooling(size, pooling_mode="mean"),
        Dense(size, 96, bias=False, activation_function=torch.nn.Identity()),
        Dense(96, 40, bias=True, activation_function=torch.nn.Tanh()),
        Normalize(),
    ]
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
    return SentenceTransformer(modules=modules, prompts=prompts)


def qwen3_embedding(folder: Path, config: dict[str, Any]) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    encoder_files(folder, config, "AutoModel", "$A <eos>")
    modules = [
        Transformer(str(folder), max_seq_length=128),
        Pooling(config["hidden_size"], pooling_mode="lasttoken"),
        Normalize(),
    ]
    prompts = {"query": "Instruct: find it\nQuery:", "document": ""}
    return SentenceTransformer(modules=modules, prompts=prompts)


def qwen3_reranker(folder: Path, config: dict[str, Any]) -> Any:
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    encoder_files(folder, config, "AutoModelForCausalLM", "$A")
    (folder / "chat_template.jinja").write_text(RERANKER_CHAT)
    modules = [
        Transformer(str(folder), transformer_task="text-generation"),
        LogitScore(true_token_id=YES, false_token_id=NO),
    ]
    prompts = {"web": "Find the passage"}
    return CrossEncoder(modules=modules, prompts=prompts, default_prompt_name="web")


def xlm_roberta_reranker(folder: Path, config: dict[str, Any]) -> Any:
    """As bge-reranker: one label, and two ends between the texts."""
    from sentence_transformers import CrossEncoder

    pair = "<bos> $A <eos> <eos> $B <eos>"
    encoder_files(folder, config, "AutoModelForSequenceClassification", "<bos> $A <eos>", pair)
    return CrossEncoder(str(folder), max_length=64)


CASES: dict[str, Callable[[Path, dict[str, Any]], Any]] = {
    "embeddinggemma": embeddinggemma,
    "qwen3_embedding": qwen3_embedding,
    "qwen3_reranker": qwen3_reranker,
    "xlm_roberta_reranker": xlm_roberta_reranker,
}


def make(name: str, into: Path) -> None:
    config = common.read_json(FOLDER / name / "config.json")
    extra = {key: config.pop(key) for key in ("sentence_transformers",) if key in config}
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        CASES[name](Path(first), config).save_pretrained(second)
        stored = json.dumps(config | extra, indent=2, sort_keys=True)
        (Path(second) / "config.json").write_text(stored)
        shapes = {
            str(path.relative_to(second)): randomise(path)
            for path in sorted(Path(second).rglob("*.safetensors"))
        }
        golden = numbers(name, second)
        shutil.rmtree(into / name, ignore_errors=True)
        for path in sorted(Path(second).rglob("*")):
            if path.suffix in (".json", ".jinja"):
                kept = into / name / path.relative_to(second)
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, kept)
    for file, made in (("tensors", shapes), ("golden", golden)):
        (into / name / f"{file}.json").write_text(json.dumps(made, indent=1) + "\n")


def randomise(path: Path) -> common.Shapes:
    """Give every tensor of a file the numbers that follow from its name; return the shapes."""
    shapes = common.shapes_in(path)
    save_file({n: random_tensor(n, s) for n, s in shapes.items()}, path, {"format": "pt"})
    return shapes


def numbers(name: str, folder: str) -> dict[str, Any]:
    from sentence_transformers import CrossEncoder, SentenceTransformer

    how = common.how("sentences", name, "float32", ("sentence-transformers", "torch"))
    kwargs = {"dtype": "float32", "attn_implementation": "eager"}
    if name.endswith("_reranker"):
        model = CrossEncoder(folder, model_kwargs=kwargs, device="cpu")
        return {"how": how, "pairs": PAIRS, "scores": model.predict(PAIRS).tolist()}
    model = SentenceTransformer(folder, model_kwargs=kwargs, device="cpu")
    plain, asked = model.encode(TEXTS), model.encode(TEXTS, prompt_name="query")
    return {"how": how, "texts": TEXTS, "vectors": plain.tolist(), "queries": asked.tolist()}
