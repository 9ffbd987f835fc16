"""What a custom model must say of itself."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.models.custom import CustomMethod, CustomProgram


def method(**changes: Any) -> CustomMethod:
    given: dict[str, Any] = {"examples": (b"",)}
    return CustomMethod(pre_process=len, call=len, post_process=len, **(given | changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"examples": ()}, "needs an example request"),
        ({"batch_sizes": ()}, "give one size of 1 or more"),
        ({"batch_sizes": (4, 0)}, "give one size of 1 or more"),
        ({"wait_s": -1.0}, "give 0 or more seconds"),
        ({"queue": 0}, "give 1 or more, or None"),
    ],
)
def test_a_method_without_sense_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        method(**changes)


@pytest.mark.parametrize("methods", [{}, {"": method()}])
def test_a_program_has_methods_with_names(methods: dict[str, CustomMethod]) -> None:
    with pytest.raises(ValueError, match="at least one method, each with a name"):
        CustomProgram(methods=methods)
