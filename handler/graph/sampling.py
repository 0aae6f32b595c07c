"""Which neighbours a model samples: how it says so, and the drawing of those that are computed."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from handler.graph.hashing import hash_bytes, mix64
from handler.graph.kernels import compiled
from handler.graph.ordering import Strategy

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_UNIT = 2.0**-53

MAX_VISITS = 1 << 16


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The strategy by which a model samples, in training and in serving alike.

    Args:
        strategy: an ordering that the snapshot stores; none for the one that its lists lie in. Or one
            that is computed: `walk`, the nodes most visited by short random walks, with their share of
            all visits as edge weights (PinSAGE: Ying et al., 2018); `random`, another uniform sample
            without replacement for each seed, which is for training.
        seed: of `walk` and `random`.
        num_walks, walk_length: of `walk`, from each node, against the direction of the edges.
    """

    strategy: Strategy | Literal["walk", "random"] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    num_walks: _Positive = 64
    walk_length: _Positive = 3


@compiled
def chance(key: np.uint64, limit: int) -> int:
    """A place in 0 to limit - 1 from the bits of a hash."""
    return int(np.float64(key >> np.uint64(11)) * _UNIT * limit)


@compiled
def draw_places(
    seed: np.uint64,
    node: int,
    degree: int,
    count: int,
    places: NDArray[np.int64],
    moved: NDArray[np.int64],
) -> None:
    """Write `count` distinct places of a row of `degree` to `places`: a shuffle, as far as it is needed.

    A smaller count gives a prefix. `moved` [2, at least count] remembers what the shuffle has swapped, so
    that the cost does not depend on the degree.
    """
    key = mix64(mix64(seed) ^ np.uint64(node))
    for step in range(count):
        here, there = step, step + chance(mix64(key + np.uint64(step)), degree - step)
        taken, given = there, here
        for earlier in range(step):  # the last swap of a place counts
            if moved[0, earlier] == there:
                taken = moved[1, earlier]
            if moved[0, earlier] == here:
                given = moved[1, earlier]
        places[step] = taken
        moved[0, step], moved[1, step] = there, given


@compiled
def node_hash(
    kind: int, ids: NDArray[np.int64], data: NDArray[np.uint8], offsets: NDArray[np.int64], node: int
) -> np.uint64:
    """The hash of one node's id, of the kinds that `NodeIds.hash_parts` names."""
    if kind == 0:
        return mix64(np.uint64(node))
    if kind == 1:
        return mix64(np.uint64(ids[node]))
    return hash_bytes(data, offsets[node], offsets[node + 1])
