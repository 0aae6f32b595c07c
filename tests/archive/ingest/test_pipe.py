"""What comes through a pipe is read as it comes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from archive.ingest import pipe
from archive.ingest.pipe import PipedText
from handler.errors import GraphInputError
from handler.graph.progress import SILENT


@contextmanager
def _written(*parts: tuple[float, bytes]) -> Iterator[PipedText]:
    """A pipe into which bytes come, each after a pause."""
    reading, writing = os.pipe()

    def write() -> None:
        for pause_s, text in parts:
            time.sleep(pause_s)
            os.write(writing, text)
        os.close(writing)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield PipedText(Path("stdin"), reading)
    finally:
        thread.join()
        os.close(reading)


def test_a_block_does_not_wait_for_more_than_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe, "_LINGER_S", 0.2)
    with _written((0, b"a\nb\nc"), (0.02, b"d\n"), (0.6, b"e\n"), (0.6, b"f")) as text:
        assert text.first_line().text == b"a"
        blocks = [(block.line, block.text) for block in text.blocks(SILENT)]
    assert blocks == [(1, b"a\nb\ncd\n"), (4, b"e\n"), (5, b"f\n")]


def test_an_empty_pipe_is_named() -> None:
    with _written() as text, pytest.raises(GraphInputError, match="stdin: the file has neither rows nor"):
        text.first_line()
