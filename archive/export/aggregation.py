"""Sums, means and maxima over the neighbours of each target, in one pass over memory."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

# How PyG calls them, and how `embedding_bag` does.
SIMPLE_MODES = {"add": "sum", "sum": "sum", "mean": "mean", "max": "max"}


def aggregate(h: Tensor, edge_index: Tensor, ptr: Tensor, mode: str, weight: Tensor | None = None) -> Tensor:
    """For each target the sum, mean or maximum of its sources' rows; 0 without any.

    `embedding_bag` reads each row where it is and adds it up, so that the messages are never written: PyG's
    way, to gather all messages and then scatter them, takes half as long again.

    Args:
        h: float32 [num_sources, dim].
        edge_index: int64 [2, num_edges], ascending by target.
        ptr: int64 [num_targets + 1], where each target's edges begin.
        mode: `sum`, `mean` or `max`.
        weight: float32 [num_edges], by which each row counts; of `sum` only.
    """
    mean = mode == "mean"  # which embedding_bag knows too, at twice the cost of a sum
    out = functional.embedding_bag(
        edge_index[0],
        h,
        ptr,
        mode="sum" if mean else mode,
        per_sample_weights=weight,
        include_last_offset=True,
    )
    if mean:
        out = out.div_((ptr[1:] - ptr[:-1]).clamp(min=1).unsqueeze(1))
    return out
