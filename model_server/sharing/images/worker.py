"""The process that decodes images, within limits of time and memory.

    python -m model_server.sharing.images.worker SECONDS NICENESS

Reads requests from standard input and writes answers to standard output until the input ends.
"""

from __future__ import annotations

import msgspec

from model_server.sharing.confined.limits import confine, run
from model_server.sharing.confined.pipe import framed
from model_server.sharing.images.images import RefusedImage, prepared
from model_server.sharing.images.process import ImageAnswer, ImageAsk

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
