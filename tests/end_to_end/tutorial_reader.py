"""The reader of Saxml's tutorial, at a shell with curl."""

from __future__ import annotations

import json
import subprocess

from sax.cli.local.cell_plan import CellPlan


def shell(host: str, port: int, command: str) -> str:
    """Run a line as the tutorial's reader would."""
    environment = {"LB_IP": host, "PORT": str(port), "PATH": "/usr/bin:/bin"}
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def curl(host: str, port: int, method: str, route: str, data: object) -> str:
    """Return the reply's body."""
    return shell(
        host,
        port,
        f'curl --request {method} --header "Content-type: application/json" -s '
        f"${{LB_IP}}:${{PORT}}/{route} --data '{json.dumps(data)}'",
    )


def curl_of(plan: CellPlan, method: str, route: str, data: object) -> str:
    """Return the body that the gateway of this cell replies with."""
    return curl(plan.gateway_host, plan.gateway_port, method, route, data)
