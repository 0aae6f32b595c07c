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
    """The trees of the first seeds that were asked for, whole or with smaller samples."""

    trees: SampledTrees
    truncated: bool = False


@dataclass(frozen=True)
class BudgetedSampler:
    """Samples what one forward may hold.

    Args:
        limits: of one forward, over all its seeds.
        truncate: whether a seed whose tree alone is too large is answered from smaller samples, or refused.
    """

    sampler: Sampler
    limits: TreeLimits
    truncate: bool

    def sample(
        self, seeds: NDArray[np.int64], plan: FanoutPlan, as_of: NDArray[np.float64] | None = None
    ) -> Sampled:
        """Trees of as many of the first seeds as fit, and of one at least.

        Whether and how far a seed's samples are cut depends on its own tree alone, never on its company:
        every sample becomes the longest prefix, of one length for all, with which the tree fits.

        Raises:
            OverBudget: the first seed's tree does not fit, and is not to be cut.
        """
        trees = self.sampler.trees(seeds, plan, as_of, self.limits)
        if trees.num_seeds:
            return Sampled(trees)
        if not self.truncate:
            raise OverBudget(self.limits.max_nodes, self.limits.max_edges)
        alone, its_time = seeds[:1], None if as_of is None else as_of[:1]
        fitting, too_many = 0, max(plan.layer_fanouts)
        trees = self.sampler.trees(alone, plan.limited(None, 0), its_time)
        while too_many - fitting > 1:
            middle = (fitting + too_many) // 2
            smaller = self.sampler.trees(alone, plan.limited(None, middle), its_time, self.limits)
            if smaller.num_seeds:
                fitting, trees = middle, smaller
            else:
                too_many = middle
        return Sampled(trees, truncated=True)
