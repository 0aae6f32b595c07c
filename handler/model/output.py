"""What a model says of some seeds; without the libraries that run models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ModelOutput:
    """What a model says of some seeds.

    Args:
        embedding: float32 [num_seeds, embedding_dim], of width 0 where it gives none.
        prediction: float32 [num_seeds, number of labels or targets], of width 0 where it gives none.
    """

    embedding: NDArray[np.float32]
    prediction: NDArray[np.float32]

    @property
    def side_by_side(self) -> NDArray[np.float32]:
        """float32 [num_seeds, output_dim], all that it says of each seed."""
        return np.concatenate([self.embedding, self.prediction], axis=1)
