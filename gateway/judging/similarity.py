"""How similar the embeddings of two versions are, whatever directions their dimensions have."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

_Floats = NDArray[np.float64]
_FEWEST_NODES = 20  # of which a similarity is told
_NUM_BLOCKS = 25  # of the jackknife


def similarity(
    first: NDArray[np.float32], second: NDArray[np.float32], confidence: float
) -> tuple[float, float]:
    """How similar two versions' embeddings of the same nodes are, and what that is at most.

    Debiased linear CKA: Kornblith et al. 2019, "Similarity of Neural Network Representations Revisited", with
    the unbiased HSIC of Song et al. 2012 as in Nguyen et al. 2021, "Do Wide and Deep Networks Learn the Same
    Things?". Rotating, mirroring, scaling and moving embeddings changes nothing, so that a model that was
    trained anew may be compared. It is 1 for the same and about 0 for unrelated ones, and for constant ones
    unless both are. The bound is by the jackknife over blocks of consecutive nodes.

    Args:
        first, second: float32 [num_nodes, dim], where the dims may differ.
        confidence: with which the similarity of all nodes like these is below the bound.

    Raises:
        ValueError: there are not as many of both, or a number is not finite.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} embeddings are not of the same nodes")
    num_nodes = len(first)
    if num_nodes < _FEWEST_NODES:
        return 0.0, 1.0
    x, y = _standardized(first), _standardized(second)
    if x is None or y is None:
        same = float(x is y)
        return same, same
    ends = np.linspace(0, num_nodes, min(_NUM_BLOCKS, num_nodes // 4) + 1).astype(int)
    blocks = [slice(*pair) for pair in pairwise(ends)]
    xy, xx, yy = (_hsic(*sides, blocks) for sides in ((x, y), (x, x), (y, y)))
    # No floor below the scale: where few nodes are far from all others, these products are small.
    scale = np.sqrt(np.maximum(xx, 0)) * np.sqrt(np.maximum(yy, 0))
    of_all, *without = np.clip(np.divide(xy, scale, out=np.zeros_like(xy), where=scale > 0), -1, 1)
    spread = np.var(without) * (len(blocks) - 1)
    upper = of_all + student.ppf(confidence, len(blocks) - 1) * math.sqrt(spread)
    return max(0.0, float(of_all)), float(np.clip(upper, 0, 1))


def _standardized(embeddings: NDArray[np.float32]) -> _Floats | None:
    """float64 around 0 and at most 1; None if they are constant as far as float32 can tell."""
    x = np.asarray(embeddings, np.float64)
    if not np.isfinite(x).all():
        raise ValueError("embeddings must be finite")
    largest = np.abs(x).max(initial=0)
    x = x - x.mean(axis=0)
    spread = np.abs(x).max(initial=0)
    return x / spread if spread > largest * np.finfo(np.float32).eps else None


def _hsic(x: _Floats, y: _Floats, blocks: list[slice]) -> _Floats:
    """Unbiased HSIC of linear kernels, float64 [1 + num_blocks]: of all rows, and of all but those of each
    block.

    With K = X X' and L = Y Y' but zeros on their diagonals, it takes tr(K L), 1' K L 1, 1' K 1 and 1' L 1,
    which are found without K and L.
    """
    kept = np.ones((len(x), 1 + len(blocks)))
    for place, block in enumerate(blocks, 1):
        kept[block, place] = 0
    product = x.T @ y
    traces = [((product - x[block].T @ y[block]) ** 2).sum() for block in (slice(0, 0), *blocks)]
    x_norms, y_norms = (x * x).sum(axis=1, keepdims=True), (y * y).sum(axis=1, keepdims=True)
    x_rows = (x @ (x.T @ kept) - x_norms) * kept
    y_rows = (y @ (y.T @ kept) - y_norms) * kept
    n = kept.sum(axis=0)
    trace = np.array(traces) - (x_norms * y_norms * kept).sum(axis=0)
    of_sums = x_rows.sum(axis=0) * y_rows.sum(axis=0) / ((n - 1) * (n - 2))
    of_rows = (x_rows * y_rows).sum(axis=0) * 2 / (n - 2)
    return np.asarray((trace + of_sums - of_rows) / (n * (n - 3)))
