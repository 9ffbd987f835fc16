"""A test of many cases goes on after one that fails, and names all that failed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Failures(list[str]):
    """What failed so far. A test ends with `assert not failures, str(failures)`."""

    @contextmanager
    def of(self, *case: object) -> Iterator[None]:
        """Keep what fails inside under the name of this case."""
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            name = " ".join(f"{part!s:.60}" for part in case)
            self.append(f"{name}: {type(error).__name__}: {error}")

    def __str__(self) -> str:
        return "\n".join(self)


def in_one_test(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Any]:
    """Like `pytest.mark.parametrize`, but all cases are one test: for many cheap ones.

    Each has a `tmp_path` of its own; other fixtures are shared, those made of `tmp_path` too. With
    hypothesis, `given` comes first, so that each example is tried on all cases.
    """
    split = [name.strip() for name in names.split(",")]

    def decorate(test: Callable[..., None]) -> Any:
        signature = inspect.signature(test)
        left = {name: of for name, of in signature.parameters.items() if name not in split}

        @functools.wraps(test)
        def every_case(*positional: Any, **shared: Any) -> None:
            shared |= zip(left, positional, strict=False)
            failures, number = Failures(), -1
            for number, case in enumerate(cases):
                own = dict(zip(split, case if len(split) > 1 else [case], strict=True))
                if "tmp_path" in shared:
                    own["tmp_path"] = shared["tmp_path"] / str(number)
                    own["tmp_path"].mkdir()
                with failures.of(*(own[name] for name in split)):
                    test(**shared | own)
            assert number >= 0, "there are no cases"
            assert not failures, str(failures)

        every_case.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=list(left.values())
        )
        return every_case

    return decorate
