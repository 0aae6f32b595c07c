"""What is read ahead is what came, in whatever pieces it came."""

from __future__ import annotations

import socket
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handler.reading import BufferedReads


@given(st.lists(st.binary(max_size=50), min_size=1), st.lists(st.integers(1, 60)))
def test_the_bytes_come_in_order(parts: list[bytes], cuts: list[int]) -> None:
    sent = b"".join(parts)
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def send() -> None:
            rest = sent
            for cut in cuts:
                theirs.sendall(rest[:cut])
                rest = rest[cut:]
            theirs.sendall(rest)

        sender = Thread(target=send)
        sender.start()
        read = BufferedReads(lambda: None)
        assert [read(ours, len(part)) for part in parts] == parts
        sender.join()


def test_a_part_may_be_larger_than_what_is_read_at_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        large = bytes(range(256)) * 4000
        sender = Thread(target=theirs.sendall, args=(b"ab" + large + b"cd",))
        sender.start()
        read = BufferedReads(lambda: None)
        assert [read(ours, 2), read(ours, len(large)), read(ours, 2)] == [b"ab", large, b"cd"]
        sender.join()


def test_a_worker_ends_when_the_front_end_has_gone() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(b"half")
        theirs.close()
        read = BufferedReads(lambda: None)
        assert read(ours, 2) == b"ha"
        with pytest.raises(SystemExit) as end:
            read(ours, 3)
        assert end.value.code == 0


def test_what_is_to_be_done_before_waiting_is_done_before_each_message() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done: list[str] = []
        read = BufferedReads(lambda: done.append("done"))
        for number in range(3):
            theirs.sendall(b"abcd")
            assert [read(ours, 1), read(ours, 3)] == [b"a", b"bcd"]
            assert len(done) == number + 1
