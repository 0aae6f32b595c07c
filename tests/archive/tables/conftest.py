"""Files with tables in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(content: str | bytes, name: str = "t.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def parquet(tmp_path: Path) -> Callable[..., Path]:
    def write(**columns: Any) -> Path:
        path = tmp_path / "t.parquet"
        pa.parquet.write_table(pa.table(columns), path)
        return path

    return write
