"""Processes of a graph that a test kills: forks of the test's own, so that they start within milliseconds."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from handler.change_service import ChangeService
from handler.graph import compaction
from handler.graph.follower import follow
from handler.metrics import Counters
from handler.settings import GraphSettings


@dataclass(frozen=True)
class Forked:
    """A child process."""

    pid: int

    def kill(self) -> bool:
        """Kill it (-9); whether that, and not its own end, ended it."""
        os.kill(self.pid, signal.SIGKILL)
        return _ended(os.waitpid(self.pid, 0)[1])

    def has_ended(self) -> bool:
        """Whether it has ended, well, by itself."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return pid == self.pid and not _ended(status)


class Appending:
    """A process that makes changes durable, one after the other."""

    def __init__(self, home: Path) -> None:
        self.connection, its_end = Pipe()
        self._process = fork(lambda: _answer(home, its_end))
        its_end.close()

    def send(self, body: bytes) -> None:
        """Ask for a change; it may take a while until it is read."""
        self.connection.send_bytes(body)

    def receive(self) -> dict[str, Any]:
        """The answer, when `connection` has one."""
        answer: dict[str, Any] = json.loads(self.connection.recv_bytes())
        return answer

    def kill(self) -> None:
        """Kill it (-9); an answer that was not read is lost."""
        was_running = self._process.kill()
        self.connection.close()
        assert was_running, "it had ended by itself"


def compacting(home: Path) -> Forked:
    """A process that compacts a graph once."""
    return fork(lambda: compaction.main([str(home)]))


def fork(work: Callable[[], int]) -> Forked:
    """Work in a child process, whose status is what the work returns; an exception is printed."""
    pid = os.fork()
    if pid:
        return Forked(pid)
    status = 70
    try:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        status = work()
    except BaseException:  # noqa: BLE001 - nothing may come back into the test's own stack
        with suppress(OSError):
            os.write(2, traceback.format_exc().encode())
    sys.stderr.flush()
    os._exit(status)


def _ended(status: int) -> bool:
    """Whether a process was killed; one that failed is an error."""
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, os.WTERMSIG(status)
        return True
    assert os.WEXITSTATUS(status) == 0, f"it ended with status {os.WEXITSTATUS(status)}"
    return False


def _answer(home: Path, connection: Connection) -> int:
    service = ChangeService(follow(home, lambda graph: graph), GraphSettings(graph=""), Counters())
    while True:
        (response,) = service.answer([connection.recv_bytes()])
        connection.send_bytes(response.body)
