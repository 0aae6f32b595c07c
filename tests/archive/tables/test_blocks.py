"""Text is cut at its lines, and is refused where it has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from archive.tables import blocks
from archive.tables.files import open_table
from handler.errors import GraphInputError
from tests.archive.tables.reading import AUTO


def test_a_line_without_end_is_no_table(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", 8)
    monkeypatch.setattr(blocks, "_LONGEST_LINE_BYTES", 1 << 20)
    with pytest.raises(GraphInputError, match="t.csv: is no table: a line is longer than 1 MiB"):
        open_table(write(b"x" * ((1 << 20) + 9)), AUTO)
