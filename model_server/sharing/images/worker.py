"""The process that decodes images, within limits of time and memory.

    python -m model_server.sharing.images.worker SECONDS NICENESS

Reads requests from standard input and writes answers to standard output until the input ends.
"""

from __future__ import annotations

import warnings
from io import BytesIO

import msgspec
from PIL import Image, ImageOps, UnidentifiedImageError

from model_server.sharing.confined.limits import confine, run
from model_server.sharing.confined.pipe import framed
from model_server.sharing.images.forms import ImageForm, WindowsForm
from model_server.sharing.images.process import MAX_PIXELS, ImageAnswer, ImageAsk

# Decodes images with Pillow and brings them into a model's form.
#
# How large an image becomes is said by its form (see `forms`). What strangers sent is decoded only
# in a process with limits of its own (see `worker`).

FORMATS = ("JPEG", "PNG", "WEBP")


class RefusedImage(Exception):
    """The text ends a sentence that begins "the image"."""


def prepared(data: bytes, form: ImageForm) -> ImageAnswer:
    """Return the pixels of an encoded image in its form. Raises RefusedImage, MemoryError."""
    image = _in_form(decoded(data, form.sides), form)
    return ImageAnswer("pixels", image.tobytes(), height=image.height, width=image.width)


def decoded(data: bytes, sides: int | None = None) -> Image.Image:
    """Return the image as RGB, upright and on white. sides: as of a form.

    Raises RefusedImage, MemoryError.
    """
    if not data:
        raise RefusedImage("is empty: send the bytes of a JPEG, PNG or WebP file")
    Image.MAX_IMAGE_PIXELS = MAX_PIXELS
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on palettes and the like
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(BytesIO(data), formats=FORMATS) as image:
                _check(image, sides)
                return _opaque(ImageOps.exif_transpose(image))
    except (RefusedImage, MemoryError):
        raise
    except UnidentifiedImageError:
        raise RefusedImage("is not a JPEG, PNG or WebP file") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise RefusedImage(_too_large()) from None
    except Exception as exc:  # each decoder has its own, for files cut off or damaged
        raise RefusedImage(f"cannot be decoded, because the file is damaged: {exc}") from exc


def _opaque(image: Image.Image) -> Image.Image:
    """Return the image as RGB; white shows through it, as in transformers' processors."""
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    clear = image if image.mode == "RGBA" else image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(clear, mask=clear)
    return white


def _check(image: Image.Image, sides: int | None) -> None:
    """Look at the header, before a pixel is decoded."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise RefusedImage(_too_large(f"{width} x {height}"))
    if sides is not None and max(width, height) > sides * min(width, height):
        raise RefusedImage(
            f"has {width} x {height} pixels: one side may be at most {sides} times the other"
        )
    # A JPEG with several pictures holds previews and the like: the first one is the photograph.
    if image.format != "MPO" and getattr(image, "n_frames", 1) > 1:
        raise RefusedImage("is an animation: send one of its frames")


def _too_large(has: str = "too many") -> str:
    return f"has {has} pixels: at most {MAX_PIXELS // 10**6} million are decoded"


def _in_form(image: Image.Image, form: ImageForm) -> Image.Image:
    if isinstance(form, WindowsForm):
        return _in_windows(image, form)
    fit, how = form.fit(*image.size), Image.Resampling(form.resample)
    made = image.resize(fit.resized, how).crop(fit.box)
    if fit.below is None:
        return made
    both = Image.new("RGB", fit.size)
    both.paste(made)
    both.paste(image.resize(fit.below, how), (0, made.height))
    return both


def _in_windows(image: Image.Image, form: WindowsForm) -> Image.Image:
    """Return windows from left to right, then down, one below the other, and the whole image."""
    fit, how = form.fit(*image.size), Image.Resampling(form.resample)
    if fit.square is not None:
        image = image.crop((0, 0, fit.square, fit.square))
    made = Image.new("RGB", fit.size)
    cut, (columns, rows) = image.resize(fit.cut, how), fit.grid
    for row, column in ((row, column) for row in range(rows) for column in range(columns)):
        left, top = column * fit.window, row * fit.window
        right, bottom = (
            min(start + fit.window, side) for start, side in zip((left, top), fit.cut, strict=True)
        )
        tile = cut.crop((left, top, right, bottom)).resize((form.tile, form.tile), how)
        made.paste(tile, (0, (row * columns + column) * form.tile))
    whole = image.resize(fit.whole, how).resize((form.whole, form.whole), how)
    made.paste(whole, (0, rows * columns * form.tile))
    return made


# Bytes that this process may allocate: an image of the most pixels, as it is and as RGB, takes 400
# MB in Pillow, which has four bytes a pixel, and one that is turned upright half as much again.
MEMORY = 1 << 30
_ADDRESSES = 4 << 30


def answer(ask: ImageAsk) -> ImageAnswer:
    try:
        return prepared(ask.image, ask.form)
    except RefusedImage as exc:
        return ImageAnswer("refused", text=str(exc))
    except MemoryError:
        return ImageAnswer(
            "runaway", text=f"needs more than {MEMORY >> 20} MiB: send a smaller one"
        )


def main() -> None:
    confine(MEMORY, _ADDRESSES)
    decoder, encode = msgspec.msgpack.Decoder(ImageAsk), msgspec.msgpack.encode
    run(lambda frame: framed(encode(answer(decoder.decode(frame)))))


if __name__ == "__main__":
    main()
