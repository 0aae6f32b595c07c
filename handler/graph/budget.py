"""Keeps each forward within a budget: more seeds wait for the next one, a single seed is sampled smaller."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from handler.errors import OverBudget
from handler.graph.fanout import FanoutPlan
from handler.graph.sampler import SampledTrees, Sampler, TreeLimits


@dataclass(frozen=True)
class Sampled:
    """The trees of the first seeds that were asked for, whole or with smaller samples.

    Args:
        plan: by which the trees were sampled.
        as_of: float64 [num_seeds], for these seeds, as it was asked for.
    """

    trees: SampledTrees
    plan: FanoutPlan
    as_of: NDArray[np.float64] | None = None
    truncated: bool = False


class BudgetedSampler:
    """Samples what one forward may hold.

    Args:
        limits: of one forward, over all its seeds; also of the tree of a single seed.
        truncate: whether a seed whose tree alone is too large is answered from smaller samples, or refused.
    """

    def __init__(self, sampler: Sampler, limits: TreeLimits, *, truncate: bool) -> None:
        self._sampler = sampler
        self._tree_limits = limits
        self._forward_limits = limits
        self._truncate = truncate

    @property
    def max_nodes(self) -> int:
        """The nodes that one forward may have, unless a single seed's tree has more."""
        return self._forward_limits.max_nodes

    def lower(self, max_nodes: int) -> None:
        """From now on put fewer trees into one forward, as memory asks.

        A single seed's tree is not cut further, for its answer would then depend on what came before.
        """
        max_nodes = max(1, min(max_nodes, self._forward_limits.max_nodes))
        self._forward_limits = TreeLimits(max_nodes, self._forward_limits.max_edges)

    def sample(
        self, seeds: NDArray[np.int64], plan: FanoutPlan, as_of: NDArray[np.float64] | None = None
    ) -> Sampled:
        """Trees of as many of the first seeds as fit, and of one at least.

        Whether and how far a seed's samples are cut depends on its own tree alone, never on its company:
        every sample becomes the longest prefix, of one length for all, with which the tree fits.

        Raises:
            OverBudget: the first seed's tree does not fit, and is not to be cut.
        """
        trees = self._sampler.trees(seeds, plan, as_of, self._forward_limits)
        if trees.num_seeds:
            return Sampled(trees, plan, None if as_of is None else as_of[: trees.num_seeds])
        alone, its_time = seeds[:1], None if as_of is None else as_of[:1]
        trees = self._sampler.trees(alone, plan, its_time, self._tree_limits)
        if trees.num_seeds:
            return Sampled(trees, plan, its_time)
        if not self._truncate:
            raise OverBudget(self._tree_limits.max_nodes, self._tree_limits.max_edges)
        return self._smaller(alone, plan, its_time)

    def _smaller(
        self, seed: NDArray[np.int64], plan: FanoutPlan, as_of: NDArray[np.float64] | None
    ) -> Sampled:
        fitting, too_many = 0, max(plan.layer_fanouts)
        used = plan.limited(None, 0)
        trees = self._sampler.trees(seed, used, as_of)
        while too_many - fitting > 1:
            middle = (fitting + too_many) // 2
            smaller = plan.limited(None, middle)
            found = self._sampler.trees(seed, smaller, as_of, self._tree_limits)
            if found.num_seeds:
                fitting, trees, used = middle, found, smaller
            else:
                too_many = middle
        return Sampled(trees, used, as_of, truncated=True)
