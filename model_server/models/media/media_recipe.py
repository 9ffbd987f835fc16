"""Recipes of encoders whose vectors stand among a language model's tokens: of images, of audio.

An image becomes `rows` vectors, which take the places of as many equal tokens of the prompt. Its
pixels are cut into pieces on the host; the encoder takes a batch of them, padded to one of a closed
set of sizes, so that nothing is compiled while serving.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import AUDIO, VISION
from model_server.kernels.cpu.served import is_native
from model_server.models.weights.sharding import Layout
from model_server.models.weights.weight import WeightForm
from model_server.sharing.images.forms import ImageForm
from model_server.sharing.videos.process import AnyVideoForm

OVERRIDES = {"image": "IMAGES", "audio": "SOUNDS"}  # by kind
CONFIGS = {"image": VISION, "audio": AUDIO}  # by kind, of config.json


class PreparedMedia(NamedTuple):
    """An image, a sound or a part of one, cut into the pieces that its encoder takes."""

    pieces: np.ndarray  # f32[p, C]
    places: np.ndarray  # i32[p, K]: of each piece, what the encoder needs beside its numbers
    # Frames, rows and columns of its vectors, as positions count them; None: as those of a text
    grid: tuple[int, int, int] | None
    rows: int  # vectors that it becomes
    text: str  # the control tokens that replace the placeholder: `rows` of them are the token
    # Of a video whose frames follow each other without texts: this frame's position behind the
    # first one's, whose grid it shares; None: it begins behind what is before it.
    frame: int | None = None
    # Positions from its first one to that of what follows it; None: the longer side of its grid
    lasts: int | None = None
    after: tuple[PreparedMedia, ...] = ()  # further parts, each encoded by itself
    kind: str = ""  # of its encoder: image, audio; "": of the medium's own
    # Of the first of parts that take turns in a prompt, i32[n]: the part of each of their tokens.
    # None: they follow each other.
    turns: np.ndarray | None = None
    # The tokens before and behind all parts share the positions of the marks around them.
    twins: bool = False

    @property
    def parts(self) -> tuple[PreparedMedia, ...]:
        return (self, *self.after)


class DecodedVideo(NamedTuple):
    """The frames of a video that a model takes."""

    frames: np.ndarray  # u8[T, h, w, 3]
    indices: tuple[int, ...]  # of these frames among all
    rate: float  # frames a second of the whole video
    total: int  # its frames
    samples: np.ndarray | None = None  # f32[n] at 16 kHz: of its sound; None: nobody asked


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoRecipe:
    """Preparation of videos for an encoder of images: single frames, or pairs of them."""

    form: AnyVideoForm  # which frames are decoded, and of which size
    prepare: Callable[[DecodedVideo], PreparedMedia]
    placeholder: str  # what chat templates write, once for each video
    marked: str  # the placeholder between marks that each part brings itself; "": there are none
    token: int  # the id whose places the vectors take
    # Puts what is seen and what is heard together; None: sound tracks are not heard
    woven: Callable[[PreparedMedia, PreparedMedia], PreparedMedia] | None = None


class MediaEncoder(Protocol):
    """A module of declared weights: the encoder and what projects its vectors."""

    def __call__(
        self,
        pieces: jax.Array,  # f32[S, P, C]
        places: jax.Array,  # i32[S, P, K]
        lengths: jax.Array,  # i32[S]: pieces of each image; those behind them are padding
    ) -> jax.Array:
        """Returns f32[S, P // per_row, W]; of an image the first `rows` count."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRecipe:
    """An encoder beside a language model, configured but not in memory.

    A model may have several, each of another kind.
    """

    kind: Literal["image", "audio"]
    build: Callable[[WeightForm], nnx.Module]  # a MediaEncoder
    form: ImageForm | None  # how images are decoded and resized; None: sounds
    prepare: Callable[[np.ndarray], PreparedMedia]  # pixels u8[h, w, 3]; of sounds, samples f32[n]
    # The same in prompts that also have media of another encoder; None: they are alike
    beside: Callable[[np.ndarray], PreparedMedia] | None = None
    placeholder: str  # what chat templates write, once for each image
    token: int  # the id whose places the vectors take
    end: int | None = None  # of the token behind them, if its vector is the encoder's, too
    piece: int  # C
    columns: int  # K
    per_row: int  # pieces that become one vector
    width: int  # W: the model's embed, times 1 + `levels`
    pieces: tuple[int, ...]  # P, ascending: sizes that are compiled; the last is a part's most
    seconds: int = 0  # the longest sound, rounded up; 0: images
    levels: int = 0  # first layers that add vectors of their own at the places of an image
    bidirectional: bool = False  # tokens of an image also see those after them: one chunk holds all
    least: int = 1  # vectors of the smallest image
    triples: bool = False  # positions are three numbers: frame, row, column
    unused: tuple[str, ...] = ()  # prefixes of its tensors in checkpoints that it does not need
    video: VideoRecipe | None = None  # None: it takes no videos
    counted: str = "each"  # for users: what has up to `rows` vectors
    # Inputs of a batch; 0: as many as take no longer than the largest one alone
    together: int = 0
    marked: str = ""  # the placeholder between marks, as prompts have it; "": there are none

    @property
    def tokens(self) -> frozenset[int]:
        """The ids whose places vectors take."""
        others = (self.end, self.video and self.video.token)
        return frozenset({self.token, *(each for each in others if each is not None)})

    @property
    def written(self) -> dict[str, str]:
        """The text that chat templates write for a medium, by each kind that it takes."""
        own = {str(self.kind): self.placeholder}
        return own if self.video is None else own | {"video": self.video.placeholder}

    @property
    def override(self) -> str:
        """The override that leaves it out when it is false."""
        return OVERRIDES[self.kind]

    @property
    def many(self) -> str:
        """The plural of its kind, for users."""
        return "images" if self.kind == "image" else "sounds"

    @property
    def encoder(self) -> str:
        """The name of the encoder, for users."""
        return "vision encoder" if self.kind == "image" else "audio encoder"

    @property
    def rows(self) -> int:
        """Most vectors of one image, or of a part that is encoded by itself."""
        return self.pieces[-1] // self.per_row


class Encoders(nnx.Module):
    """The encoders beside one language model, whose weights are planned and read as one model's."""

    def __init__(self, recipes: Sequence[MediaRecipe], form: WeightForm) -> None:
        self.each = nnx.List([recipe.build(form) for recipe in recipes])


def encoder_form(dtype: str, layout: Layout) -> WeightForm:
    """Return the form of the weights of `Encoders`, which the native kernels multiply on CPUs."""
    native = is_native(layout.platform, layout.mesh.size)
    return WeightForm(dtype=jnp.dtype(dtype), layout=layout, tiles=native, whole=True)


def encoders(*each: MediaRecipe | None) -> tuple[MediaRecipe, ...]:
    """Return those that a checkpoint has, of the ones that its family knows."""
    return tuple(recipe for recipe in each if recipe is not None)


def encoder_of(media: Sequence[MediaRecipe], kind: str) -> int | None:
    """Return the number of the encoder that takes a kind: image, video, audio; None: none does."""
    return next((number for number, each in enumerate(media) if kind in each.written), None)


def hears_videos(media: Sequence[MediaRecipe]) -> bool:
    """Return True if a model hears the sound tracks of videos."""
    woven = any(each.video is not None and each.video.woven is not None for each in media)
    return woven and encoder_of(media, "audio") is not None


def written_for(media: Sequence[MediaRecipe]) -> dict[str, str]:
    """Return what chat templates write for each kind that a model takes."""
    return {kind: text for each in media for kind, text in each.written.items()}


def names_of(media: Sequence[MediaRecipe]) -> str:
    """Return what these encoders take, for users: images, sounds, or both."""
    return " and ".join(each.many for each in media)


def text_only(media: Sequence[MediaRecipe]) -> str:
    """Return the overrides that leave these encoders out, for users."""
    return " and ".join(f"{each.override}=false" for each in media)


_LEAST = 1024  # pieces of the smallest size that is worth a program


def doubling(most: int, step: int, least: int = _LEAST) -> tuple[int, ...]:
    """Return numbers of pieces to compile for: multiples of `step`, each about twice the one
    before, up to the first from `most`.
    """
    sizes = [_up(most, step)]
    while sizes[0] > least:
        half = _up(sizes[0] // 2, step)
        if half == sizes[0]:
            break
        sizes.insert(0, half)
    return tuple(sizes)


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
