"""Files with mutations in them."""

from __future__ import annotations

from tests.archive.tables.conftest import parquet, write

__all__ = ["parquet", "write"]
