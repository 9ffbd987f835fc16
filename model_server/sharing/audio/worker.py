"""The process that decodes sounds, within limits of time and memory.

    python -m model_server.sharing.audio.worker SECONDS NICENESS

Reads requests from standard input and writes answers to standard output until the input ends.
"""

from __future__ import annotations

import os
from typing import cast

import msgspec

from model_server.sharing.audio.process import RefusedSound, SoundAnswer, SoundAsk
from model_server.sharing.audio.sounds import prepared
from model_server.sharing.confined.limits import confine, run
from model_server.sharing.confined.pipe import framed

# Bytes that this process may allocate: two hours are 460 MB of samples, once more with mirrored
# ends, and 370 MB of spectrogram of 128 bins; then that twice more in the answer.
MEMORY = 2 << 30
_ADDRESSES = 6 << 30


def answer(ask: SoundAsk) -> SoundAnswer:
    try:
        made, samples = prepared(ask.sound, ask.form)
        # msgspec writes any buffer as bytes, so that no copy is made.
        return SoundAnswer("spectrogram", cast("bytes", made.data.cast("B")), samples)
    except RefusedSound as exc:
        return SoundAnswer("refused", text=str(exc))
    except MemoryError:
        return SoundAnswer(
            "runaway", text=f"needs more than {MEMORY >> 20} MiB: send a shorter one"
        )


def main() -> None:
    confine(MEMORY, _ADDRESSES)
    # Decoders of MP3 write remarks on what strangers sent, which would fill the server's log.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    decoder, encode = msgspec.msgpack.Decoder(SoundAsk), msgspec.msgpack.encode
    run(lambda frame: framed(encode(answer(decoder.decode(frame)))))


if __name__ == "__main__":
    main()
