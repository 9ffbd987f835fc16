"""One test of many small cases: each is tried, and the test names all that failed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

LONGEST = 300  # characters of a case, in what the test says


class Failures(list[str]):
    """What failed so far. A test ends with `assert not failures, str(failures)`."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped: list[BaseException] = []

    @contextmanager
    def of(self, *case: object) -> Iterator[None]:
        """Keep what fails inside under the name of this case."""
        try:
            yield
        except pytest.skip.Exception as error:
            self.skipped.append(error)
        except (Exception, pytest.fail.Exception) as error:
            name = " ".join(f"{part!s:.{LONGEST}}" for part in case)
            self.append(f"{name}: {type(error).__name__}: {error}")

    def __str__(self) -> str:
        return "\n".join(self)

    def end(self) -> None:
        """Fail with all of them; or skip, if some case was skipped and none failed."""
        assert not self, f"{len(self)} cases failed:\n{self}"
        if self.skipped:
            raise self.skipped[0]


def each_case(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., Any]], Any]:
    """Like `pytest.mark.parametrize`, but all cases are one test: for many cheap ones.

    Each has a `tmp_path` of its own; other fixtures are shared, those made of `tmp_path` too. With
    Hypothesis, `given` comes first, so that each example is tried on all cases.
    """
    split = [name.strip() for name in names.split(",")]
    told = [case if len(split) > 1 else (case,) for case in cases]
    assert told, "there is nothing to test"

    def decorate(test: Callable[..., Any]) -> Any:
        signature = inspect.signature(test)
        left = {name: of for name, of in signature.parameters.items() if name not in split}

        def given(number: int, shared: dict[str, Any]) -> dict[str, Any]:
            own = dict(zip(split, told[number], strict=True))
            if "tmp_path" in shared:
                own["tmp_path"] = shared["tmp_path"] / str(number)
                own["tmp_path"].mkdir()
            return shared | own

        @functools.wraps(test)
        def run(*positional: Any, **shared: Any) -> None:
            shared |= zip(left, positional, strict=False)
            failures = Failures()
            for number, case in enumerate(told):
                with failures.of(*case):
                    test(**given(number, shared))
            failures.end()

        @functools.wraps(test)
        async def run_async(**shared: Any) -> None:
            failures = Failures()
            for number, case in enumerate(told):
                with failures.of(*case):
                    await test(**given(number, shared))
            failures.end()

        whole = run_async if inspect.iscoroutinefunction(test) else run
        whole.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=list(left.values())
        )
        whole.cases = [each if len(split) > 1 else each[0] for each in told]  # type: ignore[attr-defined]
        return whole

    return decorate


def cases_of(test: Callable[..., Any]) -> list[Any]:
    """The cases that a test tries: those of `each_case`, or of its one parametrised argument.

    Raises ValueError for a test that is skipped here or has no cases.
    """
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name != "nightly"]
    told = [mark.args[1] for mark in marks if mark.name == "parametrize"]
    if any(mark.name.startswith("skip") for mark in marks):
        raise ValueError(f"{test.__name__} shows nothing: it is skipped")
    if "cases" in vars(test):
        told.append(vars(test)["cases"])
    if len(told) != 1:
        raise ValueError(f"{test.__name__} has {len(told)} lists of cases, not one")
    return [each.values[0] if hasattr(each, "marks") else each for each in told[0]]
