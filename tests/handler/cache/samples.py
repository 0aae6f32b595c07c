"""Outputs that the tests of the caches put, each of which tells whose it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from handler.cache.outputs import Outputs

DIM = 64


def outputs_of(node_ids: Sequence[int], dim: int = DIM, times: float = 1.0) -> Outputs:
    """What a model may have said of nodes: row and proof follow from the node id."""
    ids = np.array(node_ids, np.int64)
    return Outputs(
        output=np.float32(times) * (ids[:, None] + np.arange(dim) / 128).astype(np.float32),
        fingerprint=ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15),
        seq=ids + 1,
        computed_us=ids + 1_700_000_000_000_000,
        num_nodes=(ids + 2).astype(np.int32),
    )


def assert_same(found: Outputs, expected: Outputs) -> None:
    for name in ("output", "fingerprint", "seq", "computed_us", "num_nodes"):
        value, wanted = getattr(found, name), getattr(expected, name)
        assert value.dtype == wanted.dtype
        np.testing.assert_array_equal(value, wanted)
