"""An admin server process like any other, but one that waits fractions of seconds for everything.

`python -m tests.admin_server.quick_admin FLAGS`, with the flags of `python -m admin_server`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from admin_server.__main__ import parse
from admin_server.cell.reconciler import Timing
from admin_server.process import running
from admin_server.provisioning.provisioner import ProvisioningTiming

FAST = Timing(poll_s=0.05, silence_s=3.0, settle_s=0.1)
QUICK = ProvisioningTiming(
    poll_s=0.1,
    gap_s=0.02,
    create_s=0.05,
    delete_s=0.2,
    lost_s=0.1,
    retry_s=0.1,
    settle_s=0.6,
)


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with running(parse(sys.argv[1:]), FAST, provisioning=QUICK):
        await stop.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main())
