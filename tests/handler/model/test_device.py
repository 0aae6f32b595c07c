"""Features reach the model's device whole, from the files or from the device itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

from handler.graph.features import CsrFeatures, DenseFeatures, Features
from handler.graph.live_features import LiveFeatures
from handler.model.device import HostFeatures, ResidentFeatures, feature_rows, for_device, on_device

CPU, META = torch.device("cpu"), torch.device("meta")
ROWS = np.random.default_rng(0).standard_normal((70_000, 3)).astype(np.float16).astype(np.float32)
ROWS[::2, 1] = 0
INDEX = np.array([5, 0, 69_999, 5])


def _csr() -> CsrFeatures:
    sparse: Any = scipy.sparse.csr_matrix(ROWS)
    return CsrFeatures(sparse.indptr.astype(np.int64), sparse.indices.astype(np.int32), sparse.data, 3)


ALL = pytest.mark.parametrize(
    "features",
    [DenseFeatures(ROWS), DenseFeatures(ROWS.astype(np.float16)), _csr()],
    ids=["f32", "f16", "csr"],
)


@ALL
def test_all_features_can_live_on_the_device(features: Features) -> None:
    found = ResidentFeatures(features, CPU).gather(INDEX)
    assert found.dtype == torch.float32
    assert np.array_equal(found, ROWS[INDEX])


@ALL
def test_what_changes_later_is_read_from_the_host(features: Features) -> None:
    live = LiveFeatures(features)
    resident = ResidentFeatures(live, CPU)
    live.add_nodes(2)
    live.set(np.array([5, 70_001]), np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32), 1)
    wanted = np.concatenate([ROWS, np.zeros((2, 3))])
    wanted[[5, 70_001]] = [[1, 2, 3], [4, 5, 6]]
    index = np.array([5, 0, 70_001, 70_000, 69_999, 5])
    assert np.array_equal(resident.gather(index), wanted[index])
    assert np.array_equal(resident.gather(INDEX[1:3]), ROWS[INDEX[1:3]])


@ALL
def test_features_are_read_into_memory_that_is_there(features: Features) -> None:
    out = np.full((4, 3), np.nan, dtype=np.float32)
    assert features.gather(INDEX, out=out) is out
    assert np.array_equal(out, ROWS[INDEX])
    assert np.array_equal(HostFeatures(features, CPU).gather(INDEX), ROWS[INDEX])


def test_features_stay_on_a_gpu_only_within_their_budget() -> None:
    features = DenseFeatures(ROWS)
    assert isinstance(feature_rows(features, META, ROWS.nbytes), ResidentFeatures)
    assert isinstance(feature_rows(features, META, ROWS.nbytes - 1), HostFeatures)
    assert isinstance(feature_rows(features, CPU, 10**9), HostFeatures)  # where the files are as near
    assert feature_rows(features, META, ROWS.nbytes).gather(INDEX).device == META


def test_only_what_is_elsewhere_moves() -> None:
    here = for_device(INDEX, CPU)
    assert on_device(here, CPU) is here
    assert here.data_ptr() == INDEX.ctypes.data
    assert on_device(here, META).device == META


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that PyTorch can use")
def test_what_goes_to_a_gpu_is_pinned() -> None:
    cuda = torch.device("cuda", 0)
    assert for_device(INDEX, cuda).is_pinned()
    rows = HostFeatures(DenseFeatures(ROWS), cuda).gather(INDEX)
    assert rows.is_pinned()
    assert np.array_equal(rows, ROWS[INDEX])
