"""Lark grammars as regexes."""

from __future__ import annotations

import re

import pytest

from http_gateway.openai.custom_tools import NotRegular, lark_pattern
from tests.each_case import each_case

# In the shape of the grammar of patches that coding agents send.
PATCH = r"""
start: begin hunk+ end
begin: "*** Begin" LF
end: "*** End" LF?

hunk: add | delete  // one of two
add: "*** Add: " filename LF add_line+
delete: "*** Delete: " filename LF
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
%import common.LF
"""


@each_case("definition, good, bad", [
    (PATCH, "*** Begin\n*** Add: a/b.py\n+x = (1)\n+\n*** Delete: c\n*** End",
     "*** Begin\n*** End"),
    ('start: "a.b"i | "c"', "A.B", "aXb"),
    ('start: ("a" | "b")~2..3 ["!"]', "aba!", "a!"),
    ('start: x~2\nx: "a".."c"\n  | /[0-9]/', "b7", "bd"),
    ('?start: INT ("," INT)*\n%import common.INT', "1,22,3", "1,,2"),
    ('start.2: /a\\/b/i\n', "A/B", "ab"),
    ('start: WORD\nWORD: /x+/', "xx", ""),
    (r'start: "\d\b"', r"\d\b", "1"),
    ('start: "\\n\\t\\"" N\n%import common.DIGIT -> N', '\n\t"4', "\n"),
])  # fmt: skip
def test_a_grammar_without_circles_is_a_regex(definition: str, good: str, bad: str) -> None:
    pattern = re.compile(lark_pattern(definition))
    assert pattern.fullmatch(good)
    assert not pattern.fullmatch(bad)


@each_case("definition, words", [
    ('start: "(" start ")" | "x"', "circle"),
    ('start: a\na: b\nb: a', "circle"),
    ('start: x', "no rule x"),
    ('begin: "x"', "no rule start"),
    ('start: "x"\n%ignore " "', "not read"),
    ('"x"', "before the first rule"),
    ('start: ("x"', "bracket"),
    ('start: "x" )', "nothing can"),
    ('start: "x"~', "too early"),
    ('start: /x/m', "flags"),
    ('start: A\n%import common.SH_COMMENT -> A', "not known"),
    ('start: "ab".."c"', "single characters"),
    ('start: "z".."a"', "in order"),
    ('start: "a"..5', "end of the range"),
    ('start: "a"~3..1', "fewer"),
    ('start: a\na: "x"\na: "y"', "twice"),
    (r'start: "\ud800"', "no text"),
    ("start: " + "a " * 15000 + "\na: /" + "x" * 30000 + "/", "too long"),
    ("start: r0\n" + "\n".join(f"r{n}: {'(' * 50}r{n + 1}{')' * 50}" for n in range(50)),
     "too deep"),
    ("start: " + "(" * 100 + '"x"' + ")" * 100, "too deep"),
    ("start: a0\n" + "\n".join(f"a{n}: a{n + 1}" for n in range(99)) + '\na99: "x"', "too deep"),
    ("start: a0\n" + "\n".join(f"a{n}: a{n + 1} a{n + 1}" for n in range(40)) + '\na40: "x"',
     "too long"),
])  # fmt: skip
def test_others_are_refused_with_the_reason(definition: str, words: str) -> None:
    with pytest.raises(NotRegular, match=words):
        lark_pattern(definition)
