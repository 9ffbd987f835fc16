"""The model servers of a local cell: the ports and processes of each.

A server is one process, or a gang with one process per host, all on this machine; only a gang's
primary answers requests. Pure, like `cell_plan`, which supplies the flags that all of them share.

Server i uses the ports of the first plus 10 x i: 10001, 10011, 10021 for models, 10003, 10013 for
metrics, 10101, 10111 where the hosts of a gang meet. So the first server keeps the default ports,
and with up to ten servers none collides with another port of the cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sax.cli.local.child import Child, Port
from sax.errors import InvalidRequest

MODEL_SERVER = "model server"
PORT_STRIDE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    name: str
    hosts: int
    port: int
    metrics_port: int
    group_port: int
    logs: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.metrics_port}/metrics"

    @property
    def meeting_point(self) -> str:
        return f"127.0.0.1:{self.group_port}"

    @property
    def ports(self) -> tuple[Port, ...]:
        ports = (
            Port(self.port, self.name, "--model-port"),
            Port(self.metrics_port, f"{self.name} metrics", "--metrics-port"),
        )
        if self.hosts == 1:
            return ports
        return (*ports, Port(self.group_port, f"hosts of the {self.name}", "--group-port"))

    def children(self, shared: tuple[str, ...], last: tuple[str, ...]) -> tuple[Child, ...]:
        """Return its processes; each gets its own flags, then `shared`, then `last`."""
        if self.hosts == 1:
            own = (f"--port={self.port}", f"--metrics_port={self.metrics_port}")
            flags = (*own, *shared, *last)
            return (Child(self.name, "model_server", flags, self._log(0)),)
        return tuple(self._host(ordinal, shared, last) for ordinal in range(self.hosts))

    def _host(self, ordinal: int, shared: tuple[str, ...], last: tuple[str, ...]) -> Child:
        flags = (
            f"--port={self.port}",
            f"--metrics_port={-1 if ordinal else self.metrics_port}",
            f"--group_port={self.group_port}",
            f"--hosts={','.join(['127.0.0.1'] * self.hosts)}",
            f"--host_ordinal={ordinal}",
            *shared,
            *last,
        )
        name = f"{self.name} host {ordinal}"
        return Child(name, "model_server", flags, self._log(ordinal), gang=self.name)

    def _log(self, ordinal: int) -> Path:
        number = self.name.removeprefix(MODEL_SERVER).strip()
        if not number and self.hosts == 1:
            return self.logs / "model_server.log"
        return self.logs / f"model_server-{number or 0}-host-{ordinal}.log"


def plan_servers(
    *, servers: int, hosts: int, model_port: int, metrics_port: int, group_port: int, logs: Path
) -> tuple[ServerPlan, ...]:
    """Plan `servers` servers of `hosts` hosts each. Raises InvalidRequest for numbers below 1."""
    for flag, value in (("--servers", servers), ("--hosts", hosts)):
        if value < 1:
            raise InvalidRequest(f"{flag} is {value}: it must be above 0", param=flag)
    return tuple(
        ServerPlan(
            name=MODEL_SERVER if servers == 1 else f"{MODEL_SERVER} {number}",
            hosts=hosts,
            port=model_port + PORT_STRIDE * number,
            metrics_port=metrics_port + PORT_STRIDE * number,
            group_port=group_port + PORT_STRIDE * number,
            logs=logs,
        )
        for number in range(servers)
    )
