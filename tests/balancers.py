"""Real balancers in front of several real hosts, on free ports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import yaml
from click.testing import CliRunner

from gateway.envoy.admin import Admin, Endpoint
from gateway.envoy.hosts import HOSTS
from gateway.hosts.place import HOSTS_NAME, Balancer
from gateway.process import kill_gateway, start_gateway
from scripts.cli.main import hopserve
from tests.gateways import NO_SETTINGS, Front, fronted
from tests.live_servers import until
from tests.servers import free_ports


class Done(NamedTuple):
    """What became of a command: as the process would end, and what was said."""

    status: int
    printed: str
    steps: str
    failure: str


@dataclass(frozen=True)
class Balanced:
    """A balancer, and the hosts behind it by their names."""

    file: Path
    hosts: Mapping[str, Front]

    @property
    def balancer(self) -> Balancer:
        return Balancer.of(self.file)

    def url(self, path: str = "/v1/graphsage/predict") -> str:
        return self.balancer.url + path

    def ask(
        self, request: Any, path: str = "/v1/graphsage/predict", headers: Mapping[str, str] = NO_SETTINGS
    ) -> httpx.Response:
        return httpx.post(self.url(path), json=request, headers=dict(headers), timeout=60)

    def run(self, *arguments: str) -> Done:
        """Run a command about these hosts."""
        group, *rest = arguments
        named = ["--hosts", str(self.file)]
        command = [group, *named, *rest] if group == "rollout" else [*arguments, *named]
        result = CliRunner().invoke(hopserve, command, standalone_mode=False)
        failure = "" if result.exception is None else str(result.exception)
        return Done(1 if failure else int(result.return_value or 0), result.stdout, result.stderr, failure)

    def seen(self) -> dict[str, Endpoint]:
        """The hosts as the balancer sees them, by name."""
        names = {host.address: host.name for host in self.balancer.settings.hosts}
        with Admin(self.balancer.settings.admin_port) as admin:
            return {names[each.address]: each for each in admin.endpoints(HOSTS)}

    def states(self) -> dict[str, str]:
        return {name: each.state for name, each in self.seen().items()}


@contextmanager
def balanced(
    folder: Path,
    archives: Callable[[str], Path],
    names: Sequence[str] = ("a", "b"),
    settings: Mapping[str, Any] = NO_SETTINGS,
    host_settings: Mapping[str, Any] = NO_SETTINGS,
) -> Iterator[Balanced]:
    """Hosts and a balancer, until the end of the block.

    Args:
        archives: gives the one of each host by its name.
    """
    with ExitStack() as stack:
        hosts = {
            name: stack.enter_context(fronted(folder / name, archives(name), settings=host_settings))
            for name in names
        }
        port, admin_port = free_ports(2)
        file = folder / HOSTS_NAME
        content = {
            "listen": {"port": port},
            "admin_port": admin_port,
            "hosts": [_described(name, front) for name, front in hosts.items()],
            **settings,
        }
        file.write_text(yaml.safe_dump(content))
        started = Balanced(file, hosts)
        stack.callback(kill_gateway, started.balancer)
        start_gateway(started.balancer)
        until(lambda: set(started.states().values()) == {"ready"})
        yield started


def _described(name: str, front: Front) -> dict[str, Any]:
    listen = front.gateway.settings.listen
    variable = f"HOPSERVE_TS_CONFIG={front.server.properties.file}"
    return {
        "name": name,
        "address": f"{listen.address}:{listen.port}",
        "command": ["env", variable, str(Path(sys.executable).with_name("hopserve"))],
    }
