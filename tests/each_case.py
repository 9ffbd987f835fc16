"""One test of many small cases: each is tried, and the test names all that failed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

LONGEST = 300  # characters of a case, in what the test says

Failures = dict[str, BaseException]


def each_case(*cases: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a test's first arguments the values of each case in turn; a tuple is for several.

    Cases share what fixtures give the test: for cheap cases that leave nothing behind. The others
    are for `pytest.mark.parametrize`, which makes a test of each. If some case skips and none
    fails, the test is skipped, once all were tried.
    """
    told = [case if isinstance(case, tuple) else (case,) for case in cases]
    assert told, "there is nothing to test"

    def of_each(test: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(test)
        parameters = list(signature.parameters.values())
        names = [parameter.name for parameter in parameters[: len(told[0])]]
        arguments = [dict(zip(names, values, strict=True)) for values in told]

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            with _all_tried() as failed:
                for case in arguments:
                    with _kept(case, failed):
                        test(**case, **fixtures)

        @functools.wraps(test)
        async def run_async(**fixtures: Any) -> None:
            with _all_tried() as failed:
                for case in arguments:
                    with _kept(case, failed):
                        await test(**case, **fixtures)

        whole = run_async if inspect.iscoroutinefunction(test) else run
        rest = signature.replace(parameters=parameters[len(names) :])
        whole.__signature__ = rest  # type: ignore[attr-defined]
        return whole

    return of_each


@contextmanager
def _kept(case: dict[str, Any], failed: Failures) -> Iterator[None]:
    try:
        yield
    except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
        text = ", ".join(f"{name}={value!r}" for name, value in case.items())
        failed[text if len(text) <= LONGEST else f"{text[:LONGEST]}..."] = error


@contextmanager
def _all_tried() -> Iterator[Failures]:
    failed: Failures = {}
    yield failed
    skipped = [error for error in failed.values() if isinstance(error, pytest.skip.Exception)]
    if len(failed) > len(skipped):
        told = (f"{case}\n{type(error).__name__}: {error}" for case, error in failed.items())
        text = "\n\n".join([f"{len(failed)} cases failed:", *told])
        raise AssertionError(text) from next(iter(failed.values()))
    if skipped:
        raise skipped[0]
