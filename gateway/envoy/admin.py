"""Speaks with Envoy's administration, which listens on loopback only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import msgspec

from gateway.envoy.forms import LOOPBACK
from gateway.errors import GatewayError

_TIMEOUT_S = 5.0


class _Stat(msgspec.Struct):
    name: str
    value: int | float | str


class _Stats(msgspec.Struct):
    stats: list[_Stat]


class _Options(msgspec.Struct):
    config_path: str


class _ServerInfo(msgspec.Struct):
    command_line_options: _Options


class _Socket(msgspec.Struct):
    address: str
    port_value: int


class _Address(msgspec.Struct):
    socket_address: _Socket


class _Health(msgspec.Struct):
    failed_active_health_check: bool = False
    failed_outlier_check: bool = False
    eds_health_status: str = "HEALTHY"


class _Counted(msgspec.Struct):
    name: str = ""
    value: int = 0


class _Endpoint(msgspec.Struct):
    address: _Address
    health_status: _Health
    stats: list[_Counted] = []
    hostname: str = ""


class _Cluster(msgspec.Struct):
    name: str
    host_statuses: list[_Endpoint] = []


class _Clusters(msgspec.Struct):
    cluster_statuses: list[_Cluster]


@dataclass(frozen=True)
class Endpoint:
    """An address of a cluster.

    Args:
        name: of the host, as the configuration has it.
        state: `ready`; `not ready`, by its own word or silence; or `resting`, as requests failed there.
        num_active: requests that are in flight there.
        num_requests: how many were sent there.
    """

    name: str
    address: str
    state: str
    num_active: int
    num_requests: int


class Admin:
    """A client of the administration; use it in a `with` statement.

    Every method raises `GatewayError` when Envoy does not answer as it should.
    """

    def __init__(self, port: int) -> None:
        self._http = httpx.Client(base_url=f"http://{LOOPBACK}:{port}", timeout=_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

    def is_ready(self) -> bool:
        """Whether it listens, with all of its configuration."""
        try:
            return self._http.get("/ready").status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def is_answering(self) -> bool:
        """Whether there is an Envoy, ready or not."""
        try:
            self._http.get("/ready")
        except httpx.HTTPError:
            return False
        return True

    def configuration(self) -> Path:
        """The file that it was started with."""
        text = self._get("/server_info")
        try:
            return Path(msgspec.json.decode(text, type=_ServerInfo).command_line_options.config_path)
        except msgspec.DecodeError as error:
            raise GatewayError(f"Envoy's description of itself is not understood: {error}") from None

    def prometheus(self, pattern: str) -> str:
        """Statistics whose names match a regular expression, as Prometheus reads them."""
        return self._get("/stats/prometheus", filter=pattern)

    def numbers(self, pattern: str) -> dict[str, int]:
        """Counters and gauges whose names match a regular expression."""
        return {
            stat.name: int(stat.value) for stat in self._stats(pattern) if isinstance(stat.value, int | float)
        }

    def texts(self, pattern: str) -> dict[str, str]:
        """Texts, such as versions of configurations, whose names match."""
        return {stat.name: str(stat.value).strip('"') for stat in self._stats(pattern, type="TextReadouts")}

    def endpoints(self, cluster: str) -> list[Endpoint]:
        """The addresses of a cluster; none if there is no such cluster."""
        text = self._get("/clusters", format="json")
        try:
            found = msgspec.json.decode(text, type=_Clusters, strict=False).cluster_statuses
        except msgspec.DecodeError as error:
            raise GatewayError(f"Envoy's description of its clusters is not understood: {error}") from None
        return [_endpoint(each) for one in found if one.name == cluster for each in one.host_statuses]

    def num_active(self) -> int:
        """Requests of clients that are not answered yet."""
        return self._gauge("http.front.downstream_rq_active")

    def num_connections(self) -> int:
        """Of clients that are open."""
        return self._gauge("http.front.downstream_cx_active")

    def close_connections(self) -> None:
        """Begin to close each connection behind its next answer; new ones are still accepted."""
        self._post("/healthcheck/fail")

    def keep_connections(self) -> None:
        """Close them no more, after all."""
        self._post("/healthcheck/ok")

    def drain(self) -> None:
        """Begin to close connections as their requests end, and then to accept no more."""
        self.close_connections()
        self._post("/drain_listeners?graceful")

    def reopen_logs(self) -> None:
        """Begin new files for logs that were moved away."""
        self._post("/reopen_logs")

    def quit(self) -> None:
        """End the process."""
        self._post("/quitquitquit")

    def _gauge(self, name: str) -> int:
        return self.numbers(f"^{re.escape(name)}$").get(name, 0)

    def _stats(self, pattern: str, **parameters: str) -> list[_Stat]:
        text = self._get("/stats", filter=pattern, format="json", **parameters)
        try:
            return msgspec.json.decode(text, type=_Stats, strict=False).stats
        except msgspec.DecodeError as error:
            raise GatewayError(f"Envoy's statistics are not understood: {error}") from None

    def _get(self, path: str, **parameters: str) -> str:
        return self._send("GET", path, parameters).text

    def _post(self, path: str) -> None:
        self._send("POST", path, None)

    def _send(self, method: str, path: str, parameters: dict[str, str] | None) -> httpx.Response:
        try:
            answer = self._http.request(method, path, params=parameters)
        except httpx.HTTPError as error:
            raise GatewayError(f"Envoy does not answer at {self._http.base_url}: {error}") from None
        if answer.is_error:
            raise GatewayError(f"Envoy answered {answer.status_code} to {path}: {answer.text.strip()}")
        return answer


def _endpoint(found: _Endpoint) -> Endpoint:
    where, health = found.address.socket_address, found.health_status
    is_ready = not health.failed_active_health_check and health.eds_health_status == "HEALTHY"
    counted = {stat.name: stat.value for stat in found.stats}
    state = "not ready" if not is_ready else "resting" if health.failed_outlier_check else "ready"
    return Endpoint(
        name=found.hostname,
        address=f"{where.address}:{where.port_value}",
        state=state,
        num_active=counted.get("rq_active", 0),
        num_requests=counted.get("rq_total", 0),
    )
