"""Requests for transcripts and for speech, what comes back, and the languages that models hear."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.table import SPEECH_CHARACTERS
from sax.format import quoted

SoundFormat = Literal["mp3", "opus", "flac", "wav", "pcm"]
FORMATS: tuple[SoundFormat, ...] = ("mp3", "opus", "flac", "wav", "pcm")
PCM_RATE = 24_000  # samples a second of pcm, which has no header: OpenAI's


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptRequest:
    """A sound to write down."""

    model_id: str
    sound: bytes  # a WAV, FLAC, MP3 or Ogg file
    language: str = ""  # code or English name; "": the one that is heard
    translate: bool = False  # into English
    prompt: str = ""  # text that comes before
    temperature: float = 0.0  # 0: greedy, and warmer where that fails
    words: bool = False  # with the times of each word


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedWord:
    """A word with the punctuation at it."""

    start: float  # seconds
    end: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Words between two timestamps."""

    start: float  # seconds
    end: float
    text: str
    tokens: tuple[int, ...] = ()  # with timestamps
    seek: int = 0  # where its window begins, in 10 ms
    temperature: float = 0.0
    avg_logprob: float = 0.0  # of the window's tokens
    compression_ratio: float = 0.0  # of the window's text
    no_speech_prob: float = 0.0  # of the window
    words: tuple[TimedWord, ...] = ()  # if they were asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptPart:
    """Transcript of one window; the first part comes before any window and tells the duration."""

    segments: tuple[Segment, ...] = ()
    language: str = ""  # code; "": not known yet
    duration: float = 0.0  # seconds of the sound


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeTranscript:
    """Transcript of a sound."""

    segments: tuple[Segment, ...]
    language: str  # code
    duration: float  # seconds

    @property
    def text(self) -> str:
        return "".join(each.text for each in self.segments).strip()

    @property
    def score(self) -> float:
        """Mean log-probability of a token; 0 for silence."""
        tokens = sum(len(each.tokens) for each in self.segments)
        total = sum(len(each.tokens) * each.avg_logprob for each in self.segments)
        return total / tokens if tokens else 0.0


def whole_transcript(parts: Iterable[TranscriptPart]) -> WholeTranscript:
    """Join the parts of one transcript."""
    segments: list[Segment] = []
    language, duration = "", 0.0
    for part in parts:
        segments += part.segments
        language, duration = part.language or language, part.duration or duration
    return WholeTranscript(segments=tuple(segments), language=language, duration=duration)


_TABLE = """
af afrikaans, am amharic, ar arabic, as assamese, az azerbaijani, ba bashkir, be belarusian,
bg bulgarian, bn bengali, bo tibetan, br breton, bs bosnian, ca catalan, cs czech, cy welsh,
da danish, de german, el greek, en english, es spanish, et estonian, eu basque, fa persian,
fi finnish, fo faroese, fr french, gl galician, gu gujarati, ha hausa, haw hawaiian, he hebrew,
hi hindi, hr croatian, ht haitian creole, hu hungarian, hy armenian, id indonesian, is icelandic,
it italian, ja japanese, jw javanese, ka georgian, kk kazakh, km khmer, kn kannada, ko korean,
la latin, lb luxembourgish, ln lingala, lo lao, lt lithuanian, lv latvian, mg malagasy, mi maori,
mk macedonian, ml malayalam, mn mongolian, mr marathi, ms malay, mt maltese, my myanmar, ne nepali,
nl dutch, nn nynorsk, no norwegian, oc occitan, pa punjabi, pl polish, ps pashto, pt portuguese,
ro romanian, ru russian, sa sanskrit, sd sindhi, si sinhala, sk slovak, sl slovenian, sn shona,
so somali, sq albanian, sr serbian, su sundanese, sv swedish, sw swahili, ta tamil, te telugu,
tg tajik, th thai, tk turkmen, tl tagalog, tr turkish, tt tatar, uk ukrainian, ur urdu, uz uzbek,
vi vietnamese, yi yiddish, yo yoruba, yue cantonese, zh chinese
"""
NAMES: dict[str, str] = {
    code: name for code, _, name in (each.strip().partition(" ") for each in _TABLE.split(","))
}
_CODES = {name: code for code, name in NAMES.items()}


def code_of(language: str) -> str:
    """Return the code of a language given by code or English name; others pass unchanged."""
    said = language.strip().lower()
    return _CODES.get(said, said)


def name_of(code: str) -> str:
    """Return the English name of a code; one that is not known stands for itself."""
    return NAMES.get(code, code)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechRequest:
    """A text to speak."""

    model_id: str
    text: str  # at most SPEECH_CHARACTERS
    voice: str = ""  # a name or number of a speaker; "": the first
    format: SoundFormat = "wav"
    speed: float = 1.0  # from 0.25 to 4
    seed: int | None = None  # u32; the same one gives the same sound; None: the server draws one
    # True: the sound comes when it is complete, and its header has its length. False: as it is
    # spoken, and the header of one in several pieces has none.
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenPart:
    """Bytes of a sound file, and of which piece of the text."""

    data: bytes
    tokens: int = 0  # of the piece, with its first bytes
    frames: int = 0  # that the model made for it
    duration: float = 0.0  # seconds


def check_speech(text: str, format: str) -> None:
    """Raise InvalidRequest for an empty or too long text, and UnsupportedParameter for a format
    that is not written here."""
    if not text.strip() or len(text) > SPEECH_CHARACTERS:
        raise InvalidRequest(
            f"input has {len(text)} characters: send 1 to {SPEECH_CHARACTERS} that are not only "
            "white space",
            param="input",
        )
    if format not in FORMATS:
        raise UnsupportedParameter(
            f"response_format {quoted(format)} is not supported: send {', '.join(FORMATS)}",
            param="response_format",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeSound:
    """A sound file."""

    data: bytes
    tokens: int
    frames: int
    duration: float  # seconds


def whole_sound(parts: Iterable[SpokenPart]) -> WholeSound:
    """Join the parts of one sound."""
    kept = [*parts]
    return WholeSound(
        data=b"".join(each.data for each in kept),
        tokens=sum(each.tokens for each in kept),
        frames=sum(each.frames for each in kept),
        duration=sum(each.duration for each in kept),
    )
