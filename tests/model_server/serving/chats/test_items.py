"""Items of Saxml's MultimodalService as messages."""

from __future__ import annotations

import numpy as np

from model_server.services.saxml_services import message_of
from model_server.sharing.audio.worker import decoded
from sax.chat import Message, Sound
from sax.proto import multimodal_pb2


def test_samples_become_a_sound_of_the_same_samples() -> None:
    samples = np.linspace(-1, 1, 777, dtype=np.float32)
    audio = multimodal_pb2.AudioFloatSamples(sample=samples.tolist())
    items = [multimodal_pb2.DataItem(audio_float_samples=audio), multimodal_pb2.DataItem(text="?")]
    (message,) = message_of(items, "items")
    sound, text = message.content
    assert message == Message("user", (sound, "?"))
    assert isinstance(sound, Sound)
    assert (sound.name, text) == ("items[0].audio_float_samples", "?")
    np.testing.assert_array_equal(decoded(sound.data, 1), samples)
