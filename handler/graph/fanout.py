"""How many neighbours each layer aggregates, and so how many each hop is expanded by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from handler.errors import MalformedRequest


@dataclass(frozen=True)
class FanoutPlan:
    """The fan-outs of one forward.

    Args:
        layer_fanouts: f(1) to f(L), for the layer applied first to the one applied last. This is the
            reverse of PyG's `num_neighbors`, which counts from the seed outwards.
        num_hops: hops that are expanded at all, at most L.
    """

    layer_fanouts: tuple[int, ...]
    num_hops: int

    @classmethod
    def of(cls, layer_fanouts: tuple[int, ...]) -> FanoutPlan:
        """The whole plan of a model with these fan-outs."""
        return cls(layer_fanouts, len(layer_fanouts))

    @cached_property
    def hop_fanouts(self) -> tuple[int, ...]:
        """What a node at hop 0, 1, ... is expanded by.

        A node at hop k takes part in layers 1 to L-k, so it needs the largest fan-out among them; each
        layer then uses its own prefix.
        """
        num_layers = len(self.layer_fanouts)
        return tuple(max(self.layer_fanouts[: num_layers - hop]) for hop in range(self.num_hops))

    @cached_property
    def hop_fanout_array(self) -> NDArray[np.int64]:
        """int64 [num_hops]: `hop_fanouts` as kernels take them."""
        return np.array(self.hop_fanouts, dtype=np.int64)

    @cached_property
    def max_tree_nodes(self) -> int:
        """The nodes of the largest tree that one seed can have."""
        nodes = level = 1
        for fanout in self.hop_fanouts:
            level *= fanout
            nodes += level
        return nodes

    def limited(self, num_hops: int | None, num_neighbors: int | None) -> FanoutPlan:
        """This plan with fewer hops or neighbours; asking for more is a `MalformedRequest`."""
        hops = self.num_hops if num_hops is None else num_hops
        if hops > self.num_hops:
            raise MalformedRequest(
                f"num_hops is {hops}, but this model has {self.num_hops} layers: at most {self.num_hops}"
            )
        largest = max(self.layer_fanouts)
        if num_neighbors is not None and num_neighbors > largest:
            raise MalformedRequest(
                f"num_neighbors is {num_neighbors}, but this model samples at most {largest}"
            )
        if hops == self.num_hops and num_neighbors is None:
            return self
        cap = largest if num_neighbors is None else num_neighbors
        return FanoutPlan(tuple(min(fanout, cap) for fanout in self.layer_fanouts), hops)
