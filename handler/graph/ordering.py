"""What each sampling strategy orders a node's in-neighbours by.

A sample is a prefix of such an order, so an order says everything of a strategy:

- `seeded`: a hash of (seed, v, u): a uniform sample without replacement, the same every time;
- `weighted`: -log(uniform hash) / weight, a sample without replacement in which each next neighbour is
  drawn in proportion to its weight (Efraimidis and Spirakis, 2006);
- `top_weight`: weight, descending;
- `recent`: time, descending;
- `first`: id, ascending.

Ties are broken by the `seeded` hash. Everything is derived from ids and edge data, never from positions,
so the same graph gives the same samples in whatever order it was read. Where edges may repeat (a
multigraph), each one's hash takes in its time and weight, and a number where even these are equal: so no
edge's place depends on the others, and one more or less changes a sample by at most one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphInputError
from handler.graph.edges import EdgeFields
from handler.graph.row_kernels import merge_rows, permute_rows

Strategy = Literal["seeded", "weighted", "top_weight", "recent", "first"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
_NEEDS = {"weighted": "weight", "top_weight": "weight", "recent": "time"}


class Ordering(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How each list of neighbours is ordered, which is what a sample is a prefix of.

    Args:
        seed: another seed gives other, independent samples; without effect but on ties where the
            strategy does not hash.
    """

    strategy: Strategy
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0


def check_ordering(ordering: Ordering, fields: EdgeFields) -> None:
    """Refuse an ordering by what the edges do not have with a `GraphInputError`."""
    need = _NEEDS.get(ordering.strategy)
    if need is not None and not getattr(fields, need):
        raise GraphInputError(f"the ordering `{ordering.strategy}` needs edges with a {need}")


def check_weights(ordering: Ordering, weight: NDArray[np.float32] | None) -> None:
    """Refuse weights that `weighted` cannot draw by with a `GraphInputError`."""
    if ordering.strategy == "weighted" and weight is not None and len(weight) and not weight.min() > 0:
        raise GraphInputError(
            f"the ordering `weighted` needs positive weights, but one is {weight.min():g};"
            " `top_weight` takes any"
        )


class RowOrderer:
    """Orders rows of in-neighbours, many at a time.

    Args:
        hashes: uint64 [num_nodes], a hash of each node's id.
        ranks: int64 [num_nodes], each node's place among ascending ids; empty where that is its index.
        multigraph: whether edges with the same ends may stand side by side.
    """

    def __init__(
        self,
        ordering: Ordering,
        hashes: NDArray[np.uint64],
        ranks: NDArray[np.int64],
        *,
        multigraph: bool,
    ) -> None:
        self.ordering = ordering
        self.multigraph = multigraph
        self._hashes = hashes
        self._ranks = ranks
        self._strategy = STRATEGIES.index(ordering.strategy)
        self._seed = np.uint64(ordering.seed)

    def merge_rows(
        self,
        first_row: int,
        row: NDArray[np.int32],
        num_rows: int,
        source: NDArray[np.integer],
        weight: NDArray[np.float32] | None,
        time: NDArray[np.float64] | None,
        *,
        summed: bool,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Sort edges into rows, deal with repeats, and order each row.

        Args:
            first_row: node index of row 0.
            row: int32 [num_edges], which row each edge is in.
            num_rows: rows there are.
            source, weight, time: of each edge.
            summed: whether weights are added where edges with the same ends become one.

        Returns:
            int64 [num_kept], positions of the edges kept, row by row in order (but in a multigraph, of edges
            with the same ends the latest alone, of equal times the last that came); int64 [num_rows], how
            many each row kept; and float32 [num_kept], their `summed` weights, or counts without weights.
        """
        return merge_rows(
            self._strategy,
            self._seed,
            self._hashes,
            self._ranks,
            first_row,
            row,
            num_rows,
            source,
            _or_none(weight, np.float32),
            _or_none(time, np.float64),
            self.multigraph,
            summed,
        )

    def permutation(
        self,
        first_row: int,
        indptr: NDArray[np.int64],
        source: NDArray[np.integer],
        weight: NDArray[np.float32] | None,
        time: NDArray[np.float64] | None,
    ) -> NDArray[np.uint32]:
        """The order of rows that lie in another one.

        Args:
            first_row: node index of row 0.
            indptr: int64 [num_rows + 1], offsets into the other arrays.

        Returns:
            uint32 [num_edges]: row by row, the places within the row, best first.
        """
        return permute_rows(
            self._strategy,
            self._seed,
            self._hashes,
            self._ranks,
            first_row,
            indptr,
            source,
            _or_none(weight, np.float32),
            _or_none(time, np.float64),
            self.multigraph,
        )


def _or_none(values: NDArray[Any] | None, dtype: type[np.floating]) -> NDArray[Any]:
    return np.empty(0, dtype=dtype) if values is None else values
