"""What a compiler might say of a bucket, by arithmetic: for tests that compile nothing."""

from __future__ import annotations

from typing import Any

from model_server.engine.buckets import Bucket
from model_server.plan.compiled import Measured
from model_server.plan.hlo.traffic import HbmBytes, StepTraffic

NO_TRAFFIC = StepTraffic(HbmBytes(0, 0, 0, 0), {}, 0)


def measured(bucket: Bucket, **changes: Any) -> Measured:
    """Numbers that nothing follows from but what the test puts there."""
    values: dict[str, Any] = {
        "arguments": 1000,
        "temporaries": 100,
        "outputs": 10,
        "code": 1,
        "flops": 0.0,
        "traffic": NO_TRAFFIC,
        "lower_seconds": 0.0,
        "compile_seconds": 1.0,
        "read_seconds": 0.0,
    }
    return Measured(bucket=bucket, **(values | changes))
