"""What sax says of its own model paths without a model server is what a model server says."""

from __future__ import annotations

from model_server.models.registry import find, model_paths
from sax.overrides.known_paths import AUTO, overrides_of, unknown_path
from sax.overrides.saxml_overrides import saxml_class_of
from sax.overrides.saxml_parameter import Verdict
from sax.overrides.saxml_parameters import SAXML_PARAMETERS
from tests.each_case import Failures


def test_every_path_is_known_with_the_overrides_that_it_takes() -> None:
    """A new family or override has to be written into sax/overrides/known_paths.py, too."""
    idle = {key for key, one in SAXML_PARAMETERS.items() if one.verdict is not Verdict.HONOURED}
    failures, every = Failures(), set[str]()
    for path in model_paths():
        taken = set(find(path).overridable)
        if saxml_class_of(path) is not None:
            taken |= idle
        elif path != "lora":
            every |= taken
        if path != AUTO:
            with failures.of(path):
                assert overrides_of(path) == taken
                assert overrides_of(path.removeprefix("saxml.server.")) == taken
                assert not unknown_path(path)
    failures.end()
    assert overrides_of(AUTO) == every
