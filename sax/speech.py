"""Requests for transcripts, what comes back, and the languages of Whisper's tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
