"""Small models that compare texts and images, or read both, and transformers' numbers.

A folder holds config.json and preprocessor_config.json, which are given; the files of its
tokenizer, tensors.json (name -> shape) and golden.npz, which are made. Weights follow from their
names (see random_tensor). golden.npz has images image_0, ... u8[h, w, 3], and how it was made. The
texts are those below.

Of models in one space (CLIP, SigLIP): ids i64[n, T] of TEXTS as they are padded, vectors of texts
and of images f32[n, D], of length 1, and logits f32[images, texts]. Of embedders: vectors f32[n, D]
of INPUTS, by the model card's rule (Qwen3-VL-Embedding: a chat of an instruction and the input, the
last token, length 1). Of rerankers: scores f32[n] of PAIRS, by the model card's rule. Of
late-interaction models: vectors of QUERIES and of the images, one after the other f32[T, D], their
lengths, and the MaxSim of each pair.
"""

from __future__ import annotations

import shutil
import string
import tempfile
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.random_tensor import random_tensor
from tests.tools.golden import common
from tests.tools.golden.media.case import image_of

FOLDER = common.GOLDEN / "seen"
TEXTS = ["A photo of a CAT.", "two dogs, asleep", "it's 2 o'clock at the lake"]
# Height and width of each image; the second one is the model's own size: other releases of Pillow
# resize to pixels that differ by one of 255.
WIDE = (31, 54)
# Of a model of any proportions: the second image needs no resizing, the third grows, and the last
# one becomes a row.
SHAPES = (WIDE, (16, 20), (27, 6), (5, 7), (6, 90))
_MERGES = ("t h", "th e</w>", "c a", "ca t</w>", "o f</w>", "d o", "a t</w>")


def clip_tokenizer(folder: Path) -> Callable[[Sequence[str]], np.ndarray]:
    """CLIP's: pairs of bytes whose last one ends a word."""
    import transformers
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    joined = ["".join(each.split()) for each in _MERGES]
    words = [*letters, *(f"{each}</w>" for each in letters), *joined]
    words += ["<|startoftext|>", "<|endoftext|>"]
    vocab = {word: place for place, word in enumerate(words)}
    merges = [tuple(each.split()) for each in _MERGES]
    made = transformers.CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=77)
    made.save_pretrained(folder)
    return lambda texts: made(list(texts), padding=True, return_tensors="np")["input_ids"]


def siglip_tokenizer(folder: Path) -> Callable[[Sequence[str]], np.ndarray]:
    """SigLIP's: SentencePiece over lower case without punctuation; by the rule of transformers'
    SiglipTokenizer, whose package needs another one for that.
    """
    import sentencepiece as spm
    from transformers.models.siglip.tokenization_siglip import SiglipTokenizer

    made = BytesIO()
    lines = [" ".join(TEXTS).lower(), "a cat and a dog at the lake", string.ascii_lowercase] * 20
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=made,  # a file would name its folder in itself
        vocab_size=60,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        normalization_rule_name="identity",  # a file of a few KB
        character_coverage=1.0,
        minloglevel=2,
    )
    (folder / "spiece.model").write_bytes(made.getvalue())
    common.write_json(
        folder / "tokenizer_config.json",
        {
            "do_lower_case": True,
            "eos_token": "</s>",
            "model_max_length": 64,
            "pad_token": "</s>",
            "tokenizer_class": "SiglipTokenizer",
            "unk_token": "<unk>",
        },
    )
    pieces = spm.SentencePieceProcessor(model_proto=made.getvalue())
    rule = SiglipTokenizer.__new__(SiglipTokenizer)
    rule.do_lower_case = True

    def ids(text: str) -> list[int]:
        # The class turns the first space off and writes it itself, behind a piece that it drops.
        return pieces.encode(rule.canonicalize_text(text)) + [pieces.eos_id()]

    def padded(texts: Sequence[str]) -> np.ndarray:
        made = [ids(text) for text in texts]
        end = pieces.eos_id()
        return np.array([each + [end] * (64 - len(each)) for each in made], np.int64)

    return padded


def siglip2_tokenizer(folder: Path) -> Callable[[Sequence[str]], np.ndarray]:
    """SigLIP 2's: that of Gemma, over lower case, as transformers' Siglip2Tokenizer reads it."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    control = ["<pad>", "<eos>", "<bos>", "<unk>"]
    tokens = [*control, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(control)
    ends = [("<eos>", 1)]
    made.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=ends)
    whole = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>"
    )
    whole.save_pretrained(folder)

    def padded(texts: Sequence[str]) -> np.ndarray:
        lower = [text.lower() for text in texts]
        return whole(lower, padding="max_length", max_length=64, return_tensors="np")["input_ids"]

    return padded


def images(name: str, *sizes: tuple[int, int]) -> dict[str, np.ndarray]:
    return {f"image_{n}": image_of(f"image {n} of {name}", *size) for n, size in enumerate(sizes)}


def in_one_space(name: str, folder: Path) -> dict[str, np.ndarray]:
    """Write the tokenizer; return ids, vectors and logits."""
    import torch

    config, process = common.read_json(folder / "config.json"), processor(folder)
    tokenizers = {"clip": clip_tokenizer, "siglip": siglip_tokenizer, "siglip2": siglip2_tokenizer}
    ids = tokenizers[name.partition("_")[0]](folder)(TEXTS)
    side = config["vision_config"].get("image_size")
    seen = images(name, *(SHAPES if side is None else (WIDE, (side, side))))
    made = process([*seen.values()], return_tensors="pt")
    with torch.no_grad():
        out = model_of(config)(input_ids=torch.from_numpy(ids), **made)
    return {
        "ids": ids,
        "texts": out.text_embeds.numpy(),
        "images": out.image_embeds.numpy(),
        "logits": out.logits_per_image.numpy(),
        **seen,
    }


def processor(folder: Path) -> Any:
    """The one of the folder's file that resizes by Pillow."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    given = common.read_json(folder / "preprocessor_config.json")
    kinds = (CLIPImageProcessorPil, Siglip2ImageProcessorPil, SiglipImageProcessorPil)
    name = given.pop("image_processor_type").removesuffix("Fast")
    [kind] = (each for each in kinds if each.__name__ == f"{name}Pil")
    return kind.from_dict(given)


def model_of(config: dict[str, Any]) -> Any:
    kind = config["architectures"][0]
    shapes = common.saved_shapes(kind, config)
    tensors = {key: tensor_of(key, shape) for key, shape in shapes.items()}
    return common.loaded(kind, config, tensors)


def tensor_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The numbers of a tensor; a single one that is stored without a dimension is one, too."""
    return random_tensor(name, shape or (1,)).reshape(shape)


# As the chat template of Qwen3-VL writes messages.
CHAT = (
    "{% for message in messages if message.role in ('system', 'user', 'assistant') %}"
    "<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Texts and numbers of images, which need no resizing.
INPUTS: list[list[str | int]] = [
    ["A lake."],
    [0],
    [1, "What is this?"],
    ["before ", 0, " after", 1],
]
PAIRS: list[list[list[str | int]]] = [[["a red boat"], [0]], [["a lake"], [1, "by night"]]]
PAIRS += [[["ships"], ["Ships sail."]], [[0], [1]]]
QUERIES = ["who sings?", "A lake, by night"]
SQUARES = ((16, 24), (24, 16))
_CONTROL = ("<pad>", "<eos>", "<bos>", "<|im_start|>", "<|im_end|>", "<|endoftext|>")
_SEEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
YES, NO = "y", "n"  # the tokens of a small vocabulary


def qwen_tokenizer(folder: Path) -> Any:
    """Bytes, and the control tokens of Qwen's models that see, from 264 on."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*_CONTROL, *letters, "<|spare|>", "<|more|>", *_SEEN]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([*_CONTROL, "<|spare|>", "<|more|>", *_SEEN])
    whole = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<|endoftext|>", eos_token="<|im_end|>"
    )
    whole.chat_template = CHAT
    whole.save_pretrained(folder)
    return whole


def squares(name: str) -> dict[str, np.ndarray]:
    sizes = enumerate(SQUARES)
    return {f"image_{n}": image_of(f"image {n} of {name}", *size) for n, size in sizes}


class QwenReader:
    """The prompt and the arrays of images that stand in a text."""

    def __init__(self, name: str, folder: Path) -> None:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            Qwen2VLImageProcessorPil,
        )

        given = common.read_json(folder / "preprocessor_config.json")
        given.pop("image_processor_type")
        self.process = Qwen2VLImageProcessorPil.from_dict(given)
        self.tokenizer = qwen_tokenizer(folder)
        self.images = [*squares(name).values()]

    def inputs(self, text: str, numbers: Sequence[int]) -> dict[str, Any]:
        """Of a model; numbers: of the images whose placeholders the text has, in order."""
        import torch

        pad, parts = _SEEN[2], list[Any]()
        *before, last = text.split(pad)
        whole = ""
        for piece, number in zip(before, numbers, strict=True):
            made = self.process([self.images[number]], return_tensors="pt")
            count = int(made["image_grid_thw"].prod()) // self.process.merge_size**2
            whole += piece + pad * count
            parts.append(made)
        ids = self.tokenizer(whole + last, return_tensors="pt")["input_ids"]
        found = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if parts:
            for key in ("pixel_values", "image_grid_thw"):
                found[key] = torch.cat([each[key] for each in parts])
            marked = ids == self.tokenizer.convert_tokens_to_ids(pad)
            found["mm_token_type_ids"] = marked.int()
        return found


def _numbers(parts: Sequence[str | int]) -> list[int]:
    return [part for part in parts if isinstance(part, int)]


def qwen3_vl_embedding(name: str, folder: Path) -> dict[str, np.ndarray]:
    import torch

    reader, model = QwenReader(name, folder), model_of(common.read_json(folder / "config.json"))
    vectors = []
    for parts in INPUTS:
        content = [
            {"type": "image"} if isinstance(part, int) else {"type": "text", "text": part}
            for part in parts
        ]
        chat = [
            {
                "role": "system",
                "content": [{"type": "text", "text": "Represent the user's input."}],
            },
            {"role": "user", "content": content},
        ]
        text = reader.tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True
        )
        with torch.no_grad():
            hidden = model.model(**reader.inputs(text, _numbers(parts))).last_hidden_state
        vectors.append(torch.nn.functional.normalize(hidden[0, -1], dim=0).numpy())
    return {"vectors": np.stack(vectors), **squares(name)}


def qwen3_vl_reranker(name: str, folder: Path) -> dict[str, np.ndarray]:
    import torch

    reader, model = QwenReader(name, folder), model_of(common.read_json(folder / "config.json"))
    yes, no = reader.tokenizer.convert_tokens_to_ids([YES, NO])
    scores = []
    for query, document in PAIRS:
        content = [{"type": "text", "text": f"<Instruct>: {_ASKED}<Query>:"}]
        for parts, after in ((query, "\n<Document>:"), (document, "")):
            for part in parts:
                own = {"type": "image"} if isinstance(part, int) else {"type": "text", "text": part}
                content.append(own)
            content.append({"type": "text", "text": after})
        chat = [
            {"role": "system", "content": [{"type": "text", "text": _JUDGE}]},
            {"role": "user", "content": content},
        ]
        text = reader.tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True
        )
        with torch.no_grad():
            logits = model(**reader.inputs(text, _numbers([*query, *document]))).logits[0, -1]
        scores.append(torch.sigmoid(logits[yes] - logits[no]).item())
    return {"scores": np.array(scores), **squares(name)}


_ASKED = "Given a search query, retrieve relevant candidates that answer the query."


def late(name: str, folder: Path, processor: Any, images: dict[str, Any]) -> dict[str, np.ndarray]:
    """By transformers' own processor, of texts and images; and the model itself."""
    import torch

    model, made = model_of(common.read_json(folder / "config.json")), list[Any]()
    with torch.no_grad():
        for query in QUERIES:
            made.append(model(**processor.process_queries([query])).embeddings[0])
        for image in images.values():
            made.append(model(**processor.process_images([image])).embeddings[0])
    queries, documents = made[: len(QUERIES)], made[len(QUERIES) :]
    scores = processor.score_retrieval(queries, documents)
    return {
        "vectors": torch.cat(made).numpy(),
        "lengths": np.array([len(each) for each in made]),
        "scores": scores.numpy(),
        **images,
    }


def colqwen2(name: str, folder: Path) -> dict[str, np.ndarray]:
    from transformers import ColQwen2Processor

    reader = QwenReader(name, folder)
    return late(name, folder, ColQwen2Processor(reader.process, reader.tokenizer), squares(name))


def colpali(name: str, folder: Path) -> dict[str, np.ndarray]:
    from transformers import ColPaliProcessor

    # The second image grows, which all releases of Pillow do alike.
    seen = images(name, (16, 16), (12, 9))
    return late(name, folder, ColPaliProcessor(processor(folder), gemma_tokenizer(folder)), seen)


def gemma_tokenizer(folder: Path) -> Any:
    """Bytes, and the control tokens of PaliGemma."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<image>"]
    tokens = [*control, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(control)
    whole = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>"
    )
    whole.save_pretrained(folder)
    return whole


MAKERS: dict[str, Callable[[str, Path], dict[str, np.ndarray]]] = {
    **dict.fromkeys(("clip", "clip_first", "siglip", "siglip2", "siglip2_naflex"), in_one_space),
    "qwen3_vl_embedding": qwen3_vl_embedding,
    "qwen3_vl_reranker": qwen3_vl_reranker,
    "colqwen2": colqwen2,
    "colpali": colpali,
}
CASES = [*MAKERS]
GIVEN = ("config.json", "preprocessor_config.json")


def make(name: str, into: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for file in GIVEN:
            shutil.copyfile(FOLDER / name / file, folder / file)
        made = MAKERS[name](name, folder)
        config = common.read_json(folder / "config.json")
        shapes = common.saved_shapes(config["architectures"][0], config)
        into.joinpath(name).mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.iterdir()):
            if path.is_file():
                shutil.copyfile(path, into / name / path.name)
    how = common.how("seen", name, "float32, eager attention", ("torch", "transformers"))
    common.write_case(into / name, shapes, how, **made)
