"""Makes the small vocabularies in vocabularies/ and what their own libraries make of tricky texts.

    python tests/golden/make_vocabularies.py

Needs sentencepiece, tiktoken and regex, which the project itself does not.
"""

from __future__ import annotations

import base64
import io
import json
import random
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

import sentencepiece
import tiktoken
from sentencepiece import sentencepiece_model_pb2
from tiktoken._educational import SimpleBytePairEncoding

HERE = Path(__file__).parent
PLACE = HERE / "vocabularies"

SENTENCES = [
    *(line for line in (HERE.parents[1] / "README.md").read_text().splitlines() if line.strip()),
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


def make_sentence_piece(name: str, options: dict[str, Any]) -> list[Any]:
    """Trains a model, writes it, and returns texts, ids and decoded texts."""
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as rules:
        for given, wanted in RULES.items():
            pair = (" ".join(f"{ord(c):X}" for c in text) for text in (given, wanted))
            rules.write("\t".join(pair) + "\n")
        rules.flush()
        if "normalization_rule_name" not in options:
            options = options | {"normalization_rule_tsv": rules.name}
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(SENTENCES),
            model_writer=model,
            minloglevel=2,
            hard_vocab_limit=False,
            **options,
        )
    message = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    message.normalizer_spec.ClearField("normalization_rule_tsv")  # a path of this machine
    data = message.SerializeToString(deterministic=True)
    (PLACE / f"{name}.model").write_bytes(data)
    own = sentencepiece.SentencePieceProcessor(model_proto=data)
    return [[text, own.encode(text), _decoded(own, own.encode(text))] for text in texts()]


def _decoded(own: sentencepiece.SentencePieceProcessor, ids: list[int]) -> str | None:
    """None for unknown characters, which ours shows as nothing and SentencePiece as a mark."""
    return None if own.unk_id() in ids else own.decode(ids)


def make_tiktoken(name: str, pattern: str, *, normalise: bool = False) -> list[Any]:
    """Trains ranks, writes them, and returns texts, ids and decoded texts."""
    ranks = _ranks(pattern)
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
    (PLACE / name).write_text("".join(lines))
    own = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    given = ((t, unicodedata.normalize("NFC", t) if normalise else t) for t in texts())
    return [[text, own.encode_ordinary(normal), normal] for text, normal in given]


def make_tekken() -> list[Any]:
    """The same for Mistral's file, in which control tokens come first."""
    ranks = _ranks(TEKKEN)
    own = tiktoken.Encoding("x", pat_str=TEKKEN, mergeable_ranks=ranks, special_tokens={})
    spare = {b"not used": len(ranks)}  # a real file has more than a model takes
    entries = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for token, rank in (ranks | spare).items()
    ]
    config = {
        "pattern": TEKKEN,
        "num_vocab_tokens": len(entries),
        "default_vocab_size": len(ranks) + SPECIAL,
        "default_num_special_tokens": SPECIAL,
        "version": "v3",
    }
    content = {"config": config, "vocab": entries}
    (PLACE / "tekken.json").write_text(json.dumps(content, indent=0) + "\n")
    return [[t, [rank + SPECIAL for rank in own.encode_ordinary(t)], t] for t in texts()]


def _ranks(pattern: str) -> dict[bytes, int]:
    data = "\n".join(SENTENCES)
    return SimpleBytePairEncoding.train(data, vocab_size=420, pat_str=pattern).mergeable_ranks


def main() -> None:
    PLACE.mkdir(exist_ok=True)
    answers = {name: make_sentence_piece(name, opts) for name, opts in SENTENCE_PIECE.items()}
    answers["qwen"] = make_tiktoken("qwen.tiktoken", QWEN, normalise=True)
    answers["llama3"] = make_tiktoken("llama3.model", LLAMA3)
    answers["tekken"] = make_tekken()
    for name, cases in answers.items():
        lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
        (PLACE / f"{name}.answers.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
