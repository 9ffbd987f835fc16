"""Languages of Whisper's tokens: ISO 639 codes and English names."""

from __future__ import annotations

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
