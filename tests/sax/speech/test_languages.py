from __future__ import annotations

from sax.speech.languages import NAMES, code_of, name_of


def test_a_language_is_told_by_code_or_by_name() -> None:
    assert code_of("de") == code_of(" German ") == "de"
    assert code_of("Haitian Creole") == "ht"
    assert code_of("klingon") == "klingon"
    assert (name_of("fr"), name_of("tlh")) == ("french", "tlh")


def test_there_are_whispers_hundred_languages() -> None:
    assert len(NAMES) == 100
    assert len(set(NAMES.values())) == 100
    assert all(code.islower() and name.islower() for code, name in NAMES.items())
