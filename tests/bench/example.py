"""The quickstart's graph and model, made where the benchmark works."""

from __future__ import annotations

from pathlib import Path

from scripts.cli.example import build_example


def make_example(root: Path) -> tuple[Path, Path, Path]:
    """The archive, the graph and the export of the example, below `root`."""
    build_example(root, root / "store")
    archive = root / "store" / "graphsage-1.0.mar"
    return archive, root / "var" / "graphs" / "digits", root / "var" / "models" / "graphsage-1.0" / "export"
