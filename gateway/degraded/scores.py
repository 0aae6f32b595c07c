"""Scores of links that two embeddings give without a model."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

_SHORTEST = 1e-12


def simple_scores(
    kind: Literal["dot", "cosine"], source: NDArray[np.float32], target: NDArray[np.float32]
) -> NDArray[np.float32]:
    """float32 [num_pairs], as `ExportedModel.score` has it, of embeddings float32 [num_pairs, dim] each."""
    if kind == "cosine":
        source, target = _normalised(source), _normalised(target)
    scores: NDArray[np.float32] = np.einsum("pd,pd->p", source, target)
    return scores


def _normalised(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    unit: NDArray[np.float32] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), _SHORTEST)
    return unit
