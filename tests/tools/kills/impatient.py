"""`sax`, whose supervisor takes every death for the first: no delay that doubles.

A replica that dies every few seconds is started again after up to half a minute, so that a broken
one costs little. Here that would only measure the delay.
"""

from __future__ import annotations

from functools import partial

from sax.cli.__main__ import main
from sax.cli.local import bring_up
from sax.cli.local.supervisor import RestartPolicy, Supervisor

_AT_ONCE = RestartPolicy(longest_s=RestartPolicy().first_s)

if __name__ == "__main__":
    bring_up.Supervisor = partial(Supervisor, policy=_AT_ONCE)  # type: ignore[misc]
    main()
