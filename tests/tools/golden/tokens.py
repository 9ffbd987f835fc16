"""Small folders of models with a vector or labels per token, and transformers' numbers.

A folder holds config.json and late.json or nothing else, which are given; the small files of a
checkpoint as transformers writes them, tensors.json (file -> name -> shape) and golden.json, which
are made. Weights follow from their names (see random_tensor).

Of late-interaction models (those with late.json: the files of PyLate or colbert-ir by name),
golden.json has for queries and documents the ids, and the vectors that are compared, by the rule of
PyLate 1.6 (ColBERT.tokenize and ColBERT.encode) over transformers' tokenizer and model, and the
MaxSim of each pair. Of classifiers it has what the pipeline "token-classification" answers by
aggregation strategy.
"""

from __future__ import annotations

import json
import shutil
import string
import tempfile
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from tests.golden.random_tensor import random_tensor
from tests.tools.golden import common
from tests.tools.golden.sentences import randomise

FOLDER = common.GOLDEN / "tokens"
CASES = [
    *("colbert", "pylate_modernbert", "pylate_qwen3"),
    *("bert_tags", "modernbert_tags", "xlm_roberta_tags", "qwen3_tags"),
]
CONTROL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]", "[Q] ", "[D] ")
QUERIES = ["who sings?", "Zürich, by the lake: when was it built?"]
DOCUMENTS = ["she sings; he hums.", "The lake (and the town) is old -- built long ago!"]
TEXTS = ["Ann Lee sang in Paris.", "Łódź, and O'Neill's café!", "plain words"]
WORDS = ("the", "ann", "lee", "sing", "lake", "paris", "town", "##s", "##ng", "##is", "##lt")
STRATEGIES = ("none", "simple", "first", "average", "max")


def word_pieces() -> Any:
    """As BERT: lower case, words, and pieces of words that begin with ##."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    letters = string.ascii_lowercase + string.digits
    tokens = [*CONTROL, *string.punctuation, *letters, *(f"##{each}" for each in letters), *WORDS]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    return made


def letters() -> Any:
    """As ModernBERT and Qwen: bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = [*CONTROL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def pieces() -> Any:
    """As XLM-RoBERTa: pieces with a score, and a mark for each space."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    plain = [*string.ascii_letters, *string.punctuation, "é", "\u2581", "\u2581Par", "is", "ang"]
    vocab = [*((token, 0.0) for token in CONTROL), *((p, -2.0 - len(p) / 9) for p in plain)]
    made = Tokenizer(models.Unigram(vocab, unk_id=1))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    return made


def save_tokenizer(folder: Path, config: dict[str, Any]) -> None:
    import transformers
    from tokenizers import processors

    kind = config["model_type"]
    made = {"bert": word_pieces, "xlm-roberta": pieces}.get(kind, letters)()
    made.add_special_tokens(list(CONTROL))
    special = [(token, i) for i, token in enumerate(CONTROL)]
    single = "$A [SEP]" if kind == "qwen3" else "[CLS] $A [SEP]"
    made.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    named = {"mask_token": "[MASK]"} if kind != "qwen3" else {}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", eos_token="[SEP]", **named
    ).save_pretrained(folder)


def make(name: str, into: Path) -> None:
    import transformers

    given = FOLDER / name
    config = common.read_json(given / "config.json")
    late = common.read_json(given / "late.json") if (given / "late.json").exists() else None
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        common.write_json(folder / "config.json", config)
        read = transformers.AutoConfig.from_pretrained(folder)
        auto = "AutoModel" if late else "AutoModelForTokenClassification"
        if late and config["architectures"] == ["HF_ColBERT"]:
            auto = "BertForMaskedLM"  # the names in colbert-ir's files begin with bert. too
        of = getattr(transformers, auto)
        (of.from_config if auto.startswith("Auto") else of._from_config)(read).save_pretrained(
            folder
        )
        common.write_json(folder / "config.json", config)
        save_tokenizer(folder, config)
        for file, content in (late or {}).items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(json.dumps(content, indent=1) + "\n")
        add_layers(folder, config, late)
        shapes = {
            str(path.relative_to(folder)): randomise(path)
            for path in sorted(folder.rglob("*.safetensors"))
        }
        golden = compared(folder, late) if late else classified(folder)
        golden = {"how": common.how("tokens", name, "float32, eager attention")} | golden
        shutil.rmtree(into / name, ignore_errors=True)
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".json", ".metadata"):
                kept = into / name / path.relative_to(folder)
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, kept)
    if late:
        (into / name / "late.json").write_text(json.dumps(late, indent=1) + "\n")
    for file, made in (("tensors", shapes), ("golden", golden)):
        (into / name / f"{file}.json").write_text(json.dumps(made, indent=1) + "\n")


def add_layers(folder: Path, config: dict[str, Any], late: dict[str, Any] | None) -> None:
    """Write the dense layers of late.json, or colbert-ir's among the model's tensors."""
    from safetensors.numpy import load_file

    if late and "artifact.metadata" in late:
        path = folder / "model.safetensors"
        shape = (late["artifact.metadata"]["dim"], config["hidden_size"])
        tensors = load_file(path) | {"linear.weight": random_tensor("linear.weight", shape)}
        save_file({k: v for k, v in tensors.items() if not k.startswith("cls.")}, path)
    for file, dense in (late or {}).items():
        if file.endswith("_Dense/config.json"):
            sizes = dense["out_features"], dense["in_features"]
            tensors = {"linear.weight": random_tensor("", sizes)}
            if dense["bias"]:
                tensors["linear.bias"] = random_tensor("", sizes[:1])
            if dense["use_residual"] and sizes[0] != sizes[1]:
                tensors["residual.weight"] = random_tensor("", sizes)
            save_file(tensors, (folder / file).parent / "model.safetensors")


def settings(late: dict[str, Any]) -> dict[str, Any]:
    """PyLate's settings, of its own folders and of colbert-ir's."""
    if (given := late.get("artifact.metadata")) is None:
        return late["config_sentence_transformers.json"]
    return {
        "query_prefix": given["query_token_id"],
        "document_prefix": given["doc_token_id"],
        "query_length": given["query_maxlen"],
        "document_length": given["doc_maxlen"],
        "attend_to_expansion_tokens": given["attend_to_mask_tokens"],
        "skiplist_words": list(string.punctuation),
        "do_query_expansion": True,
    }


def compared(folder: Path, late: dict[str, Any]) -> dict[str, Any]:
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    kwargs = {"dtype": torch.float32, "attn_implementation": "eager"}
    model = transformers.AutoModel.from_pretrained(folder, **kwargs).eval()
    chosen = settings(late)
    tokenizer.pad_token = tokenizer.mask_token or tokenizer.eos_token
    skipped = [tokenizer.convert_tokens_to_ids(word) for word in chosen["skiplist_words"]]

    def read(text: str, *, query: bool) -> dict[str, Any]:
        kind = "query" if query else "document"
        most = chosen[f"{kind}_length"] - 1
        fills = query and chosen["do_query_expansion"]
        made = tokenizer(text, padding="max_length" if fills else False, max_length=most)
        prefix = tokenizer.convert_tokens_to_ids(chosen[f"{kind}_prefix"])
        ids, mask = made["input_ids"], made["attention_mask"]
        assert len(ids) <= most, "texts are not cut"
        ids, mask = [ids[0], prefix, *ids[1:]], [1, 1, *mask[1:]]
        if query and chosen["attend_to_expansion_tokens"]:
            mask = [1] * len(mask)
        with torch.no_grad():
            inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.tensor([mask])}
            hidden = model(**inputs).last_hidden_state[0]
            vectors = projected(folder, late, hidden)
        kept = [place for place, token in enumerate(ids) if query or token not in skipped]
        vectors = torch.nn.functional.normalize(vectors[kept], p=2, dim=1)
        return {"text": text, "ids": ids, "vectors": vectors}

    queries = [read(text, query=True) for text in QUERIES]
    documents = [read(text, query=False) for text in DOCUMENTS]
    scores = [
        [(q["vectors"] @ d["vectors"].T).max(1).values.sum().item() for d in documents]
        for q in queries
    ]
    for each in (*queries, *documents):
        each["vectors"] = [[round(x, 7) for x in vector] for vector in each["vectors"].tolist()]
    return {"queries": queries, "documents": documents, "scores": scores}


def projected(folder: Path, late: dict[str, Any], hidden: Any) -> Any:
    """The dense layers over the hidden states of tokens."""
    from safetensors.torch import load_file

    if "artifact.metadata" in late:
        return hidden @ load_file(folder / "model.safetensors")["linear.weight"].T
    for file, dense in late.items():
        if file.endswith("_Dense/config.json"):
            tensors = load_file((folder / file).parent / "model.safetensors")
            made = hidden @ tensors["linear.weight"].T + tensors.get("linear.bias", 0.0)
            if dense["use_residual"]:
                through = tensors.get("residual.weight")
                made = made + (hidden if through is None else hidden @ through.T)
            hidden = made
    return hidden


def classified(folder: Path) -> dict[str, Any]:
    import torch
    import transformers

    pipeline = transformers.pipeline(
        "token-classification",
        model=str(folder),
        model_kwargs={"dtype": torch.float32, "attn_implementation": "eager"},
        device="cpu",
    )
    answers = {
        strategy: [
            [{key: plain(value) for key, value in each.items()} for each in found]
            for found in (
                pipeline(
                    text,
                    aggregation_strategy=strategy,
                    ignore_labels=[] if strategy == "none" else ["O"],
                )
                for text in TEXTS
            )
        ]
        for strategy in STRATEGIES
    }
    return {"texts": TEXTS, "answers": answers}


def plain(value: Any) -> Any:
    return value if isinstance(value, str | int) else float(value)
