"""What a model said of some nodes before, and what that stands for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Outputs:
    """Rows of a model's output, with what proves them.

    Args:
        output: float32 [num_rows, dim], embedding and prediction side by side.
        fingerprint: uint64 [num_rows], of the sampled tree; see `handler.cache.freshness`.
        seq: int64 [num_rows], the latest mutation that counted.
        computed_us: int64 [num_rows], when that was, in microseconds since 1970.
        num_nodes: int32 [num_rows], nodes of the sampled tree.
    """

    output: NDArray[np.float32]
    fingerprint: NDArray[np.uint64]
    seq: NDArray[np.int64]
    computed_us: NDArray[np.int64]
    num_nodes: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.fingerprint)

    def take(self, places: NDArray[np.int64]) -> Outputs:
        """The rows at these places."""
        return Outputs(
            self.output[places],
            self.fingerprint[places],
            self.seq[places],
            self.computed_us[places],
            self.num_nodes[places],
        )
