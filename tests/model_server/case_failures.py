"""A test of many cases goes on after one that fails, and names all that failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class Failures(list[str]):
    """What failed so far. A test ends with `assert not failures, str(failures)`."""

    @contextmanager
    def of(self, *case: object) -> Iterator[None]:
        """Keep what fails inside under the name of this case."""
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            name = " ".join(map(str, case))
            self.append(f"{name}: {type(error).__name__}: {error}")

    def __str__(self) -> str:
        return "\n".join(self)
