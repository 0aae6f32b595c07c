"""The rules by which the edges that are given become those that count."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec

from handler.errors import GraphInputError

Duplicates = Literal["drop", "sum", "keep"]


class EdgeRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What edges count.

    Args:
        undirected: each edge counts both ways.
        duplicates: of edges with the same ends `drop` all but the latest (of equal times, the last that
            came), `sum` their weights (or count them), or `keep` them all.
        self_loops: whether edges from a node to itself count.
        max_edge_age: edges whose time is more than this before now are not sampled, and compaction drops
            them; in the unit of the edges' times. None: edges do not age.

    Raises:
        GraphInputError: `max_edge_age` is not positive and finite.
    """

    undirected: bool = False
    duplicates: Duplicates = "drop"
    self_loops: bool = True
    max_edge_age: Annotated[float, msgspec.Meta(gt=0)] | None = None

    def __post_init__(self) -> None:
        age = self.max_edge_age
        if age is not None and not (age > 0 and math.isfinite(age)):
            raise GraphInputError(f"max_edge_age must be positive and finite, but is {age}")

    @property
    def multigraph(self) -> bool:
        """Whether edges with the same ends may stand side by side."""
        return self.duplicates == "keep"
