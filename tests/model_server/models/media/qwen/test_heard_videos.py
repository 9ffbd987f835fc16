"""Videos and their sounds take turns as the Omni processors write them; vectors and logits are in
test_media_families.py."""

from __future__ import annotations

import asyncio
import io

import numpy as np
import pytest
import soundfile

from model_server.loading.images.image_reader import ImageReader
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.models.media.qwen.heard_videos import Weaver, by_time, in_chunks
from model_server.serving.chats.rendered_chat import check_kinds
from sax.chat import Image, Sound, Video
from sax.errors import InvalidRequest, UnsupportedParameter
from tests.model_server.models.media.media_cases import golden_media_of, media_config_of, parts_of
from tests.model_server.models.media.media_recipes import made, preprocessor_of
from tests.model_server.video_files import video_file
from tests.tools.golden.media.omni import BEGIN, FINISH, IMAGE, SOUND, VIDEO

SECOND, THIRD = "qwen2_5_omni_heard", "qwen3_omni_moe_heard"
TEXTS = {
    SECOND: ("<|audio_bos|>", "<|audio_eos|>", "<|VIDEO|>", "<|AUDIO|>", "<|IMAGE|>"),
    THIRD: ("<|audio_start|>", "<|audio_end|>", "<|video_pad|>", "<|audio_pad|>", "<|image_pad|>"),
}


def media_of(name: str, **overrides: str) -> tuple[MediaRecipe, ...]:
    return made(media_config_of(name), preprocessor_of(name), **overrides).media


@pytest.mark.parametrize("name", [SECOND, THIRD])
def test_texts_are_the_tokens_of_the_reference_processor(name: str) -> None:
    text = "".join(part.text for part in parts_of(media_of(name), name))
    found = list[int]()
    while text:
        each = next(each for each in TEXTS[name] if text.startswith(each))
        text = text[len(each) :]
        found.append((BEGIN, FINISH, VIDEO, SOUND, IMAGE)[TEXTS[name].index(each)])
    prompt = golden_media_of(name)["prompt"].tolist()
    # The marks of a sound that is sent alone are the template's.
    ours = [token for token in found if token in (VIDEO, SOUND, IMAGE)]
    assert ours == [token for token in prompt if token in (VIDEO, SOUND, IMAGE)]
    first = found.index(BEGIN)
    assert str(found[first : first + 20])[1:-1] in str(prompt)


def part(rows: int, text: str, frame: int | None = None, *, seen: bool = False) -> PreparedMedia:
    nothing = np.zeros((rows, 1), np.float32)
    grid = (1, 1, rows) if seen else None
    return PreparedMedia(nothing, nothing.astype(np.int32), grid, rows, text * rows, frame)


def woven(weaver: Weaver, frames: list[int], sounds: list[int]) -> PreparedMedia:
    """Frames of two vectors each at these positions, and parts of a sound of so many vectors."""
    first, *others = (part(2, "v", frame or None, seen=True) for frame in frames)
    heard, *rest = (part(rows, "a") for rows in sounds)
    return weaver(first._replace(after=tuple(others)), heard._replace(after=tuple(rest)))


CHUNKS = Weaver(turns=in_chunks(4), marks=("<", ">"), twins=True)
TIMES = Weaver(turns=by_time, marks=("<", ">"), twins=False)


@pytest.mark.parametrize(
    ("weaver", "frames", "sounds", "text", "lasts"),
    [
        (CHUNKS, [0, 2, 4], [5], "<vvvvaaaavva>", 5),
        (CHUNKS, [0, 4, 8], [2, 3], "<vvaaaavvavv>", 9),
        # A frame that is two chunks late has its vectors in a chunk each.
        (CHUNKS, [0, 9], [9], "<vvaaaavaaaava>", 9),
        (TIMES, [0, 2], [5], "<vvaavvaaa>", 5),
        (TIMES, [0, 2, 9], [1, 2], "<vvaavvavv>", 10),
    ],
)
def test_turns_are_taken_by_time(
    weaver: Weaver, frames: list[int], sounds: list[int], text: str, lasts: int
) -> None:
    found = woven(weaver, frames, sounds)
    assert found.text == text
    assert (found.lasts, found.twins) == (lasts, weaver.twins)
    assert found.turns is not None
    kinds = ["v" if number < len(frames) else "a" for number in found.turns]
    assert "".join(kinds) == text[1:-1]
    heard = found.parts[len(frames) :]
    assert [each.frame for each in heard] == np.cumsum([0, *sounds[:-1]]).tolist()
    assert {(each.text, each.kind) for each in heard} == {("", "audio")}


def test_a_video_is_read_with_its_sound_as_both_would_be_alone() -> None:
    sound = (np.sin(np.arange(9_000) / 9) * 9_000).astype(np.int16)
    video = video_file(9, rate=3, width=24, height=16, kind="matroska", sound=sound)
    recipes, file = media_of(SECOND), io.BytesIO()
    soundfile.write(file, sound, 16_000, format="WAV")

    async def read() -> None:
        reader = ImageReader(recipes)
        both = Video(video, heard=True)
        sent = [both, Video(video), Sound(file.getvalue()), both]
        heard, watched, alone, again = await reader.read(sent)
        assert again is heard
        assert [part.pieces for part in heard] == [part.pieces for part in (*watched, *alone)]
        assert [part.encoder for part in heard] == [0] * len(watched) + [1] * len(alone)
        assert heard[0].turns is not None
        assert watched[0].turns is None
        with pytest.raises(InvalidRequest, match="here: the video has no sound, and use_audio_in"):
            await reader.read([Video(video_file(9, rate=3), "here", heard=True)])

    asyncio.run(read())


def test_only_models_that_hear_videos_are_asked_to() -> None:
    video: list[Image] = [Video(b"x", "here", heard=True)]
    check_kinds(video, media_of(THIRD))
    for media in (media_of(THIRD, SOUNDS="false"), media_of("qwen2_vl")):
        with pytest.raises(UnsupportedParameter, match="this model does not hear them"):
            check_kinds(video, media)
