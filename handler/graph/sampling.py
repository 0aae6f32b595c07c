"""Which neighbours a model samples, and how it says so."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from handler.graph.ordering import Strategy

_Positive = Annotated[int, msgspec.Meta(ge=1)]

MAX_VISITS = 1 << 16
#: The strategies whose samples are computed, of whole rows, not read.
COMPUTED = frozenset({"random", "walk"})


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
