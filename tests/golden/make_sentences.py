"""Makes tests/golden/sentences/*: folders as sentence-transformers writes them, and its numbers.

Run by hand, in an environment with torch, transformers and sentence-transformers, from the
repository root:

    python -m tests.golden.make_sentences [NAME ...]

Each folder holds the small files of a checkpoint (config.json, modules.json, the modules' own,
tokenizer.json), tensors.json (file -> name -> shape) and golden.json: texts and their vectors, or
pairs and their scores. Weights follow from their names (see random_tensor).
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import sentence_transformers
import tokenizers
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from tokenizers import decoders, models, pre_tokenizers, processors

from tests.golden.families_maker.decoders import qwen3
from tests.golden.families_maker.gemmas import gemma3_by_layer_types
from tests.golden.families_maker.gpts import roberta
from tests.golden.random_tensor import random_tensor

HERE = Path(__file__).parent / "sentences"
CONTROL = ("<pad>", "<eos>", "<bos>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
VOCAB = 264
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


def tokenizer(frame: str, pair: str | None = None) -> transformers.PreTrainedTokenizerFast:
    """Bytes and a few control tokens; frame, pair: around texts, as tokenizers write it."""
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
    folder: Path, config: Mapping[str, Any], auto: Any, frame: str, pair: str | None = None
) -> None:
    """Write a transformers folder with random weights."""
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": VOCAB}))
    auto.from_config(transformers.AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": VOCAB}))
    tokenizer(frame, pair).save_pretrained(folder)


def embeddinggemma(folder: Path) -> SentenceTransformer:
    config = gemma3_by_layer_types() | {
        "architectures": ["Gemma3TextModel"],
        "max_position_embeddings": 128,
        "use_bidirectional_attention": True,
    }
    encoder_files(folder, config, transformers.AutoModel, "<bos> $A <eos>")
    size = config["hidden_size"]
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
    return SentenceTransformer(
        modules=[
            Transformer(str(folder), max_seq_length=128),
            Pooling(size, pooling_mode="mean"),
            Dense(size, 96, bias=False, activation_function=torch.nn.Identity()),
            Dense(96, 40, bias=True, activation_function=torch.nn.Tanh()),
            Normalize(),
        ],
        prompts=prompts,
    )


def qwen3_embedding(folder: Path) -> SentenceTransformer:
    config = qwen3(pad_token_id=0, tie_word_embeddings=True, max_position_embeddings=128)
    encoder_files(folder, config, transformers.AutoModel, "$A <eos>")
    prompts = {"query": "Instruct: find it\nQuery:", "document": ""}
    return SentenceTransformer(
        modules=[
            Transformer(str(folder), max_seq_length=128),
            Pooling(config["hidden_size"], pooling_mode="lasttoken"),
            Normalize(),
        ],
        prompts=prompts,
    )


def qwen3_reranker(folder: Path) -> CrossEncoder:
    config = qwen3(pad_token_id=0, tie_word_embeddings=True, max_position_embeddings=256)
    encoder_files(folder, config, transformers.AutoModelForCausalLM, "$A")
    (folder / "chat_template.jinja").write_text(RERANKER_CHAT)
    return CrossEncoder(
        modules=[
            Transformer(str(folder), transformer_task="text-generation"),
            LogitScore(true_token_id=YES, false_token_id=NO),
        ],
        prompts={"web": "Find the passage"},
        default_prompt_name="web",
    )


def xlm_roberta_reranker(folder: Path) -> CrossEncoder:
    """As bge-reranker: one label, and two ends between the texts."""
    config = roberta(
        model_type="xlm-roberta",
        architectures=["XLMRobertaForSequenceClassification"],
        id2label={"0": "LABEL_0"},
        pad_token_id=0,
        max_position_embeddings=65,
    )
    pair = "<bos> $A <eos> <eos> $B <eos>"
    auto = transformers.AutoModelForSequenceClassification
    encoder_files(folder, config, auto, "<bos> $A <eos>", pair)
    return CrossEncoder(str(folder), max_length=64)


CASES: dict[str, Callable[[Path], Any]] = {
    "embeddinggemma": embeddinggemma,
    "qwen3_embedding": qwen3_embedding,
    "qwen3_reranker": qwen3_reranker,
    "xlm_roberta_reranker": xlm_roberta_reranker,
}


def make(name: str) -> None:
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        CASES[name](Path(first)).save_pretrained(second)
        config = json.loads((Path(first) / "config.json").read_text())
        stored = Path(second) / "config.json"
        written = json.loads(stored.read_text())
        extra = {k: v for k, v in written.items() if k == "sentence_transformers"}
        stored.write_text(json.dumps(config | extra, indent=2, sort_keys=True))
        shapes = {
            str(path.relative_to(second)): randomise(path)
            for path in sorted(Path(second).rglob("*.safetensors"))
        }
        golden = numbers(name, second)
        for path in sorted(Path(second).rglob("*")):
            if path.suffix in (".json", ".jinja"):
                kept = target / path.relative_to(second)
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, kept)
    (target / "tensors.json").write_text(json.dumps(shapes, indent=1) + "\n")
    (target / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


def randomise(path: Path) -> dict[str, tuple[int, ...]]:
    """Give every tensor of a file the numbers that follow from its name; return the shapes."""
    with safe_open(path, "np") as file:
        shapes = {n: tuple(file.get_slice(n).get_shape()) for n in sorted(file.keys())}
    save_file({n: random_tensor(n, s) for n, s in shapes.items()}, path, {"format": "pt"})
    return shapes


def numbers(name: str, folder: str) -> dict[str, Any]:
    versions = (
        f"sentence-transformers {sentence_transformers.__version__}, torch {torch.__version__}"
    )
    how = f"python -m tests.golden.make_sentences {name}; {versions} (CPU), float32"
    kwargs = {"dtype": "float32", "attn_implementation": "eager"}
    if name.endswith("_reranker"):
        model = CrossEncoder(folder, model_kwargs=kwargs, device="cpu")
        return {"how": how, "pairs": PAIRS, "scores": model.predict(PAIRS).tolist()}
    model = SentenceTransformer(folder, model_kwargs=kwargs, device="cpu")
    plain, asked = model.encode(TEXTS), model.encode(TEXTS, prompt_name="query")
    return {"how": how, "texts": TEXTS, "vectors": plain.tolist(), "queries": asked.tolist()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = set(sys.argv[1:]) or set(CASES)
    assert wanted <= set(CASES), f"there is no case {wanted - set(CASES)}"
    for case in sorted(wanted):
        make(case)
        sys.stdout.write(f"{case}\n")
