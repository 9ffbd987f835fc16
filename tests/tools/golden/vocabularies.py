"""Small vocabularies, and what their own libraries make of tricky texts.

A file NAME.answers.json holds texts, their ids and the decoded texts. The vocabularies are trained
on sentences.txt, which is given: lines of an early README.md.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import random
import tempfile
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tools.golden import common

SENTENCES = [  # behind those of sentences.txt
    *["naïve café déjà vu: 1234 + 5678 = 6912", "你好，世界 日本語テキスト 한국어 조선말"] * 10,
    *["def f(x):\n\treturn x  # twice", "العربية हिन्दी ภาษาไทย", "🙂 🙃 👩‍👩‍👧 — “quoted”"] * 10,
]
# from, to: longest first wins; white space becomes a space, one thing vanishes
RULES = {
    "\t": " ",
    "\n": " ",
    "\u00a0": " ",
    "\u3000": " ",
    "\u200b": "",
    "\uff41": "a",
    "\uff41\u0301": "\u00e1",
    "e\u0301": "\u00e9",
    "\u2460": "1",
    "\ufb01": "fi",
    "...": "\u2026",
    "\u1112\u1161\u11ab": "\ud55c",
}
PARTS = [
    *("", " ", "  ", "\n", "\n\n \n", "\t", "a", " a", "a ", "Hello world", "  a  b   c  "),
    *("Hello   world!!", "naïve café", "你好，世界", "🙂👩‍👩‍👧", "<s>", "</s> hi", "<unk>"),
    *("a<0x0A>b", "<tool>", "<|x|>", "<ctl>", "1234567 3.14", "\uff41\u0301\uff41", "\u2460\u2461"),
    *("e\u0301", "a\u0300\u0323", "\u1112\u1161\u11ab", "日本語", "\u2581x\u2581", "x\u00a0y"),
    *("\u200b\u200d", "\ufeff", "[INST] do [/INST]", "العربية", "हिन्दी", "\x00\x01\x7f", "\ufb01"),
    *("a\r\nb", "I'M sure it's you'LL", "camelCaseHTTP", "....", "///\n", "\u3000x", "ſ", "é"),
]

BYTES: dict[str, Any] = {"byte_fallback": True, "vocab_size": 520}
PLAIN: dict[str, Any] = {
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}
OWN: dict[str, Any] = {
    "user_defined_symbols": ["<tool>", "<|x|>"],
    "control_symbols": ["<ctl>"],
}
SENTENCE_PIECE: dict[str, dict[str, Any]] = {
    "unigram_rules": {"model_type": "unigram", "vocab_size": 400, **OWN},
    "unigram_bytes": {"model_type": "unigram", **BYTES, **PLAIN, **OWN},
    "bpe_rules": {"model_type": "bpe", "vocab_size": 400, **OWN},
    "bpe_llama": {"model_type": "bpe", **BYTES, **PLAIN},
    "bpe_gemma": {
        "model_type": "bpe",
        **BYTES,
        **PLAIN,
        "add_dummy_prefix": False,
        "user_defined_symbols": ["\u2581\u2581", "\u2581\u2581\u2581", "\n", "\n\n", "<tool>"],
    },
    "char": {"model_type": "char", "vocab_size": 200, **PLAIN},
}
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = 24  # control tokens of the small tekken.json


def texts() -> list[str]:
    """Every part alone, and some hundred together."""
    rng = random.Random(0)
    mixed = ("".join(rng.choice(PARTS) for _ in range(rng.randint(2, 6))) for _ in range(150))
    return [*PARTS, *mixed]


def sentence_piece(file: Path, options: dict[str, Any]) -> list[Any]:
    """Trains a model, writes it, and returns texts, ids and decoded texts."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as rules:
        for given, wanted in RULES.items():
            pair = (" ".join(f"{ord(c):X}" for c in text) for text in (given, wanted))
            rules.write("\t".join(pair) + "\n")
        rules.flush()
        if "normalization_rule_name" not in options:
            options = options | {"normalization_rule_tsv": rules.name}
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(_sentences()),
            model_writer=model,
            minloglevel=2,
            hard_vocab_limit=False,
            **options,
        )
    message = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    message.normalizer_spec.ClearField("normalization_rule_tsv")  # a path of this machine
    data = message.SerializeToString(deterministic=True)
    file.write_bytes(data)
    own = sentencepiece.SentencePieceProcessor(model_proto=data)
    ids = [own.encode(text) for text in texts()]
    return [[text, each, own.decode(each)] for text, each in zip(texts(), ids, strict=True)]


def ranks(file: Path, pattern: str, *, normalise: bool = False) -> list[Any]:
    """Trains ranks, writes them, and returns texts, ids and decoded texts."""
    trained, own = _trained(pattern)
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in trained.items())
    file.write_text("".join(lines))
    given = ((t, unicodedata.normalize("NFC", t) if normalise else t) for t in texts())
    ids = [(text, own.encode_ordinary(normal)) for text, normal in given]
    return [[text, each, own.decode(each)] for text, each in ids]


def tekken(file: Path) -> list[Any]:
    """The same for Mistral's file, in which control tokens come first."""
    trained, own = _trained(TEKKEN)
    spare = {b"not used": len(trained)}  # a real file has more than a model takes
    entries = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for token, rank in (trained | spare).items()
    ]
    config = {
        "pattern": TEKKEN,
        "num_vocab_tokens": len(entries),
        "default_vocab_size": len(trained) + SPECIAL,
        "default_num_special_tokens": SPECIAL,
        "version": "v3",
    }
    content = {"config": config, "vocab": entries}
    file.write_text(json.dumps(content, indent=0) + "\n")
    ids = [(text, own.encode_ordinary(text)) for text in texts()]
    return [[text, [rank + SPECIAL for rank in each], own.decode(each)] for text, each in ids]


def _trained(pattern: str) -> tuple[dict[bytes, int], Any]:
    import tiktoken
    from tiktoken._educational import bpe_train

    data = "\n".join(_sentences())
    made = bpe_train(data, vocab_size=420, pat_str=pattern, visualise=None)
    return made, tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=made, special_tokens={})


def _sentences() -> list[str]:
    given = (common.GOLDEN / "vocabularies" / "sentences.txt").read_text(encoding="utf-8")
    return [*(line for line in given.splitlines() if line.strip()), *SENTENCES]


# Name -> file and what makes it.
CASES: dict[str, tuple[str, Callable[[Path], list[Any]]]] = {
    **{
        name: (f"{name}.model", functools.partial(sentence_piece, options=options))
        for name, options in SENTENCE_PIECE.items()
    },
    "qwen": ("qwen.tiktoken", functools.partial(ranks, pattern=QWEN, normalise=True)),
    "llama3": ("llama3.model", functools.partial(ranks, pattern=LLAMA3)),
    "tekken": ("tekken.json", tekken),
}


def make(name: str, into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    file, answers_of = CASES[name]
    answers = answers_of(into / file)
    lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in answers)
    (into / f"{name}.answers.json").write_text(f"[\n{lines}\n]\n")
