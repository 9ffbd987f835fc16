"""The planner's golden stories: how a cell lives, in text that people read.

`SAX_REWRITE_GOLDEN=1 python -m pytest tests/admin_server/assignment/test_stories.py` rewrites them:
read the difference before you commit it. The language of the stories is in story.py.
"""

import os
from pathlib import Path

from tests.admin_server.story import tell
from tests.each_case import each_case

STORIES = sorted((Path(__file__).parent / "golden" / "stories").glob("*.txt"))


@each_case("path", STORIES)
def test_a_story_goes_as_it_is_told(path):
    text = path.read_text()
    told = tell(text)
    if os.environ.get("SAX_REWRITE_GOLDEN"):
        path.write_text(told)
    assert told == text


def test_there_are_stories():
    assert len(STORIES) >= 15
