"""Gathered rows equal those of the dense matrix, however they are stored."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from handler.graph.features import CsrFeatures, DenseFeatures


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@given(data=st.data())
def test_rows_equal_those_of_the_matrix(dtype: type, data: st.DataObject) -> None:
    num_nodes, width = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 6))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    matrix = generator.standard_normal((num_nodes, width)) * (generator.random((num_nodes, width)) < 0.4)
    matrix = matrix.astype(dtype)
    sparse = csr_matrix(matrix.astype(np.float32))
    index = np.array(data.draw(st.lists(st.integers(0, num_nodes - 1), max_size=12)), dtype=np.int64)
    stored = (
        DenseFeatures(matrix),
        CsrFeatures(
            sparse.indptr.astype(np.int64), sparse.indices.astype(np.int32), sparse.data.astype(dtype), width
        ),
    )
    for features in stored:
        found = features.gather(index)
        assert features.shape == (num_nodes, width)
        assert found.dtype == np.float32
        assert np.array_equal(found, matrix[index].astype(np.float32))


def test_gathered_rows_are_a_copy() -> None:
    matrix = np.zeros((2, 2), dtype=np.float32)
    DenseFeatures(matrix).gather(np.array([0, 1]))[:] = 1
    assert not matrix.any()
