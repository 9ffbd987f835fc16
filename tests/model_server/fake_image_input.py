"""Image input of the arithmetic model: red values of 2 x 2 pixels stand for tokens."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from model_server.engine.media import EncoderLimits, MediaLimits
from model_server.loading.images.image_reader import ImageReader
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.sharing.images.forms import SquareForm
from model_server.text.chat_template import ChatTemplate
from model_server.text.control_tokens import ControlTokens
from model_server.text.tokenizer import ByteTokenizer

PLACEHOLDER, SOFT = "<image>", "<soft>"
TOKEN = 200  # no byte of ASCII
LIMITS = MediaLimits(
    rows=16,
    width=1,
    encoders=(EncoderLimits(kind="image", pieces=(4, 8), piece=1, columns=1, per_row=1),),
)
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}"
    "{% endif %}{{ '\\n' }}{% endfor %}assistant: "
)


class SeeingTokenizer(ByteTokenizer):
    """Bytes, and one token that stands for a vector of an image."""

    control_ids = frozenset({TOKEN})

    def encode_chat(self, rendered: str) -> list[int]:
        pieces = ControlTokens({PLACEHOLDER, SOFT}).split(rendered)
        return [
            token
            for piece in pieces
            for token in ([TOKEN] if piece == (SOFT, True) else self.encode(piece.text))
        ]


def prepare(pixels: np.ndarray) -> PreparedMedia:
    reds = pixels[:, :, :1].reshape(-1, 1).astype(np.float32)
    text = f"[{SOFT * len(reds)}]"
    return PreparedMedia(reds, np.zeros((len(reds), 1), np.int32), (1, 2, 2), len(reds), text)


def _no_weights(*_: Any) -> Any:
    raise AssertionError("it has no weights")


RECIPE = MediaRecipe(
    kind="image",
    build=_no_weights,
    form=SquareForm(2, None, 0),
    prepare=prepare,
    placeholder=PLACEHOLDER,
    token=TOKEN,
    piece=1,
    columns=1,
    per_row=1,
    width=1,
    pieces=(4, 8),
)


def seeing(recipe: MediaRecipe = RECIPE) -> dict[str, Any]:
    """Fields of a Loaded that takes images."""
    return {
        "tokenizer": SeeingTokenizer(256),
        "chat_template": ChatTemplate(TEMPLATE, "", "", (SOFT,), {"image": PLACEHOLDER}),
        "images": ImageReader([recipe]),
        "methods": ("lm.generate", "lm.generate_stream", "lm.score", "mm.generate", "mm.score"),
    }


def picture(*reds: int) -> bytes:
    """A PNG file of 2 x 2 pixels with these values."""
    pixels = np.zeros((2, 2, 3), np.uint8)
    pixels[:, :, 0] = np.reshape(reds, (2, 2))
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def read_as(*parts: str | Sequence[int]) -> list[int]:
    """Tokens of a user's message of texts and images, as the model sees them."""
    inside = (
        list(part.encode()) if isinstance(part, str) else [ord("["), *part, ord("]")]
        for part in parts
    )
    return [*b"user: ", *(token for part in inside for token in part), *b"\nassistant: "]
