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

    lines = [" ".join(TEXTS).lower(), "a cat and a dog at the lake", string.ascii_lowercase] * 20
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(folder / "spiece"),
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
    (folder / "spiece.vocab").unlink()
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
    pieces = spm.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
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


def images(name: str, side: int) -> dict[str, np.ndarray]:
    sizes = enumerate((WIDE, (side, side)))
    return {f"image_{n}": image_of(f"image {n} of {name}", *size) for n, size in sizes}


def in_one_space(name: str, folder: Path) -> dict[str, np.ndarray]:
    """Write the tokenizer; return ids, vectors and logits."""
    import torch

    config, process = common.read_json(folder / "config.json"), processor(folder)
    tokenizers = {"clip": clip_tokenizer, "siglip": siglip_tokenizer, "siglip2": siglip2_tokenizer}
    ids = tokenizers[name.partition("_")[0]](folder)(TEXTS)
    seen = images(name, config["vision_config"]["image_size"])
    pixels = process([*seen.values()], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        out = model_of(config)(input_ids=torch.from_numpy(ids), pixel_values=pixels)
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

    given = common.read_json(folder / "preprocessor_config.json")
    kinds = {"Siglip": SiglipImageProcessorPil, "CLIPIm": CLIPImageProcessorPil}
    kind = kinds[given.pop("image_processor_type")[:6]]
    return kind.from_dict(given)


def model_of(config: dict[str, Any]) -> Any:
    kind = config["architectures"][0]
    shapes = common.saved_shapes(kind, config)
    tensors = {key: tensor_of(key, shape) for key, shape in shapes.items()}
    return common.loaded(kind, config, tensors)


def tensor_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The numbers of a tensor; a single one that is stored without a dimension is one, too."""
    return random_tensor(name, shape or (1,)).reshape(shape)


MAKERS: dict[str, Callable[[str, Path], dict[str, np.ndarray]]] = {
    **dict.fromkeys(("clip", "clip_first", "siglip", "siglip2"), in_one_space),
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
