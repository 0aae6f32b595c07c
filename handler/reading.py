"""Reads messages of many small parts from a socket, in few system calls."""

from __future__ import annotations

from collections.abc import Callable
from socket import socket

_CHUNK_BYTES = 1 << 16


class BufferedReads:
    """Gives the next bytes of one connection, of which it reads as many at once as have come.

    TorchServe asks the socket for each length, name and value of each header by itself, some forty times for
    a request: that takes longer than to find a stored answer. Its front end sends a message and waits for
    the answer, so that reading ahead takes nothing from anyone.

    Args:
        before_waiting: called whenever the socket is read, before which all answers have been sent.
    """

    def __init__(self, before_waiting: Callable[[], None]) -> None:
        self._before_waiting = before_waiting
        self._buffer = b""
        self._at = 0

    def __call__(self, connection: socket, length: int) -> bytes:
        """The next `length` bytes.

        Raises:
            SystemExit: the other side has hung up, which ends a worker as TorchServe has it.
        """
        end = self._at + length
        if end > len(self._buffer):
            self._fill(connection, length)
            end = length
        data = self._buffer[self._at : end]
        self._at = end
        return data

    def _fill(self, connection: socket, length: int) -> None:
        """Have at least `length` bytes, from the begin of the buffer."""
        self._before_waiting()
        parts = [self._buffer[self._at :]]
        missing = length - len(parts[0])
        while missing > 0:
            part = connection.recv(max(missing, _CHUNK_BYTES))
            if not part:
                raise SystemExit(0)
            parts.append(part)
            missing -= len(part)
        self._buffer, self._at = b"".join(parts), 0
