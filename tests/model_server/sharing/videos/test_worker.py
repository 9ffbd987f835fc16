"""Videos are decoded to the frames that a model takes; what is no video is refused in words."""

from __future__ import annotations

import io
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import soundfile
from msgspec.structs import replace
from PIL import Image

from model_server.sharing.images.forms import BudgetForm
from model_server.sharing.videos import worker
from model_server.sharing.videos.process import (
    SampledForm,
    VideoAnswer,
    VideoAsk,
    VideoForm,
    VideoProcess,
)
from sax.chat import Video, frames_in
from tests.model_server.video_files import video_file

FORM = VideoForm(
    factor=8,
    least=64,
    most=64 * 64,
    frame_most=64 * 64,
    together=False,
    temporal=2,
    rate=2.0,
    least_frames=4,
    most_frames=768,
)


def greys(answer: VideoAnswer) -> list[int]:
    assert answer.kind == "frames", answer.text
    frames = np.frombuffer(answer.frames, np.uint8)
    return [int(each.mean()) for each in frames.reshape(len(answer.indices), -1)]


@pytest.mark.parametrize(
    ("codec", "kind"), [("mpeg4", "mp4"), ("mpeg4", "avi"), ("mjpeg", "matroska"), ("mpeg4", "mov")]
)
def test_frames_of_a_container_are_taken_by_their_number(codec: str, kind: str) -> None:
    pixels = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    found = worker.answer(VideoAsk(video_file(codec=codec, kind=kind, pixels=pixels), FORM))
    assert found.indices == (0, 5, 10, 15, 20, 25)
    assert (found.height, found.width, found.rate, found.total) == (48, 64, 10.0, 30)
    wanted = [255 * number // 29 for number in found.indices]
    assert max(abs(a - b) for a, b in zip(greys(found), wanted, strict=True)) <= 4


def test_frames_are_taken_evenly_each_as_an_image_of_a_budget() -> None:
    ask = VideoAsk(video_file(), SampledForm(BudgetForm(8, 70), 3))
    found = worker.answer(msgspec.msgpack.decode(msgspec.msgpack.encode(ask), type=VideoAsk))
    assert (found.indices, found.rate, found.total) == ((0, 10, 20), 10.0, 30)
    assert (found.height, found.width) == (56, 72)
    assert greys(found) == pytest.approx([0, 87, 175], abs=4)


def picture(grey: int = 0, width: int = 16) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, 16), (grey,) * 3).save(file, "PNG")
    return file.getvalue()


def of(*frames: bytes) -> VideoAnswer:
    images = frames_in(Video.of_frames(frames).data)
    assert images == frames
    return worker.answer(VideoAsk(b"", FORM, images))


def test_all_images_of_a_list_are_frames_of_24_a_second() -> None:
    found = of(*(picture(grey) for grey in (0, 100, 200)))
    assert greys(found) == [0, 100, 200]
    assert (found.indices, found.rate, found.total) == ((0, 1, 2), 24.0, 3)


def sound() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(800), 16_000, format="WAV")
    return file.getvalue()


def lying(frames: int) -> bytes:
    """An AVI whose header promises so many frames, and so does that of its stream."""
    data = bytearray(video_file(kind="avi"))
    for head, at in ((b"avih", 8 + 16), (b"strh", 8 + 32)):
        start = data.index(head) + at
        data[start : start + 4] = frames.to_bytes(4, "little")
    return bytes(data)


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "is empty"),
    "a picture": (picture, "is not a MP4, MOV, WebM"),
    "a sound": (sound, "is not a MP4, MOV, WebM"),
    "a list of files": (lambda: b"#EXTM3U\n#EXTINF:1\nfile:///etc/passwd\n", "is not a MP4"),
    "a torn file": (lambda: video_file()[:-400], "damaged|cut off"),
    "a file torn after its head": (lambda: video_file(kind="avi")[:-9000], "cut off|damaged"),
    "a head alone": (lambda: b"\0\0\0\x18ftypmp42" + bytes(40), "damaged"),
    "a million frames promised": (lambda: lying(10**6), "promises 1000000 frames and 30 are there"),
    "one frame": (lambda: video_file(1), "has 1 frames, and this model takes 2 or more"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_whole_video_is_refused_in_words(what: str) -> None:
    made, text = BAD[what]
    found = worker.answer(VideoAsk(made(), FORM))
    assert found.kind == "refused"
    assert any(each in found.text for each in text.split("|")), found.text


def tone(samples: int, rate: int = 16_000) -> np.ndarray:
    return (np.sin(np.arange(samples) * 2 * np.pi * 440 / rate) * 12_000).astype(np.int16)


def heard(video: bytes, seconds: int = 10) -> VideoAnswer:
    return worker.answer(VideoAsk(video, FORM, seconds=seconds))


def test_the_sound_of_a_video_is_read_if_it_is_asked_for() -> None:
    wanted = tone(20_000).astype(np.float32) / 2**15
    for kind in ("matroska", "mov", "avi"):
        video = video_file(kind=kind, sound=tone(20_000))
        found = heard(video)
        np.testing.assert_array_equal(np.frombuffer(found.samples, "<f4"), wanted)
        assert greys(found) == greys(worker.answer(VideoAsk(video, FORM)))
        assert worker.answer(VideoAsk(video, FORM)).samples == b""


@pytest.mark.parametrize(
    ("codec", "kind", "rate"),
    [("aac", "mp4", 44_100), ("libmp3lame", "mp4", 24_000), ("libopus", "matroska", 48_000)]
    + [("flac", "matroska", 48_000), ("ac3", "mov", 48_000)],
)
def test_sounds_of_codecs_are_mixed_and_resampled(codec: str, kind: str, rate: int) -> None:
    both = np.stack([tone(rate, rate), tone(rate, rate) // 2])
    samples = np.frombuffer(
        heard(video_file(kind=kind, sound=both, sound_codec=codec, sound_rate=rate)).samples, "<f4"
    )
    assert len(samples) == pytest.approx(16_000, abs=900)  # codecs fill up their last frame
    spectrum = np.abs(np.fft.rfft(samples[4_000:12_000]))
    assert int(spectrum.argmax()) * 2 == 440
    loudest = np.abs(samples[4_000:12_000]).max()
    assert loudest == pytest.approx(9_000 / 2**15, rel=0.05)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: video_file(), "has no sound, and use_audio_in_video asks for it"),
        (lambda: video_file(kind="mov", sound=tone(16_001)), "a sound of more than 1 s"),
        (lambda: video_file(kind="avi", sound=tone(0)), "has a sound without samples"),
        (
            lambda: video_file(kind="avi", sound=tone(16_000), sound_codec="adpcm_ms"),
            "a sound of the codec adpcm_ms, which is not decoded here",
        ),
    ],
)
def test_sounds_that_cannot_be_heard_are_refused_in_words(
    make: Callable[[], bytes], text: str
) -> None:
    found = heard(make(), 1)
    assert found.kind == "refused"
    assert text in found.text
    frames = worker.answer(VideoAsk(b"", FORM, (picture(), picture()), 1))
    assert "is a list of images, which has no sound" in frames.text


IMAGES: dict[str, list[bytes]] = {
    "has 0 images as frames: this model takes from 2 to 768": [],
    "has 769 images as frames": [picture()] * 769,
    "number 2, of (17, 16) pixels": [picture(), picture(0, 17)],
    "number 2, that is not a JPEG": [picture(), b"x"],
}


def test_lists_of_images_that_are_no_video_are_refused_in_words() -> None:
    for text, images in IMAGES.items():
        found = of(*images)
        assert (found.kind, text in found.text) == ("refused", True), found.text
    with pytest.raises(ValueError, match="its last image is shorter"):
        frames_in(Video.of_frames([picture(), picture()]).data[:-1])


def test_a_video_of_too_many_frames_is_refused_before_one_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "MAX_FRAMES", 29)
    found = worker.answer(VideoAsk(video_file(), FORM))
    assert "has more than 29 frames" in found.text


def test_frames_that_are_too_large_are_refused_before_one_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "MAX_FRAME_PIXELS", 64 * 47)
    found = worker.answer(VideoAsk(video_file(), FORM))
    assert "has frames of 64 x 48 pixels: at most 3008 are decoded" in found.text


def test_the_process_outlives_a_bad_video_and_decodes_the_next() -> None:
    process = VideoProcess()
    try:
        assert process.answer(VideoAsk(video_file()[:-400], FORM)).kind == "refused"
        few = replace(FORM, most_frames=4)
        assert process.answer(VideoAsk(video_file(), few)).indices == (0, 7, 15, 22)
    finally:
        process.stop()
