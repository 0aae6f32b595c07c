"""How similar embeddings are found to be, against a slow and obvious reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gateway.judging.similarity import similarity


def _hsic(k: NDArray[np.float64], l: NDArray[np.float64]) -> float:  # noqa: E741 - as in the paper
    """Unbiased HSIC, equation 5 of Song et al. 2012, of kernels as whole matrices."""
    n = len(k)
    k, l = (kernel - np.diag(np.diag(kernel)) for kernel in (k, l))  # noqa: E741
    one = np.ones(n)
    return float(
        (
            np.trace(k @ l)
            + (one @ k @ one) * (one @ l @ one) / ((n - 1) * (n - 2))
            - 2 / (n - 2) * (one @ k @ l @ one)
        )
        / (n * (n - 3))
    )


def _reference(x: NDArray[np.float32], y: NDArray[np.float32]) -> float:
    x64, y64 = x.astype(np.float64), y.astype(np.float64)
    k, m = x64 @ x64.T, y64 @ y64.T
    return _hsic(k, m) / float(np.sqrt(_hsic(k, k) * _hsic(m, m)))


def _embeddings(seed: int, num_nodes: int = 200, dim: int = 16) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((num_nodes, dim)).astype(np.float32)


@given(st.integers(0, 1_000), st.integers(20, 120), st.integers(1, 40), st.floats(0, 1))
def test_it_is_that_of_whole_kernels(seed: int, num_nodes: int, dim: int, mixed: float) -> None:
    x, y = _embeddings(seed, num_nodes, 8), _embeddings(seed + 1, num_nodes, dim)
    y[:, : min(8, dim)] += 3 * mixed * x[:, : min(8, dim)]
    found, upper = similarity(x, y, 0.99)
    assert found == pytest.approx(max(0.0, min(1.0, _reference(x, y))), abs=1e-6)
    assert found <= upper <= 1


def test_what_only_turns_or_grows_is_the_same() -> None:
    x = _embeddings(0)
    turn, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((16, 16)))
    y = (5 * x @ turn + 100).astype(np.float32)
    assert similarity(x, y, 0.99)[0] == pytest.approx(1, abs=1e-4)


def test_what_has_nothing_to_do_with_the_other_is_not() -> None:
    found, upper = similarity(_embeddings(0), _embeddings(1), 0.99)
    assert found < 0.1
    assert upper < 0.5


def test_constant_embeddings_are_like_constant_ones_alone() -> None:
    x, constant = _embeddings(0), np.ones((200, 16), dtype=np.float32)
    assert similarity(x, constant, 0.99) == (0.0, 0.0)
    assert similarity(constant, 2 * constant, 0.99) == (1.0, 1.0)


def test_a_few_nodes_tell_nothing() -> None:
    assert similarity(_embeddings(0, 5), _embeddings(1, 5), 0.99) == (0.0, 1.0)


def test_the_bound_holds_as_often_as_it_says() -> None:
    """Of many samples of 60 nodes, the similarity of all nodes is below the bound in 0.95."""
    rng = np.random.default_rng(0)
    x = _embeddings(0, 4_000, 8)
    y = x + 0.7 * _embeddings(1, 4_000, 8)
    whole, _ = similarity(x, y, 0.95)
    chosen = [rng.choice(4_000, 60, replace=False) for _ in range(200)]
    held = sum(similarity(x[nodes], y[nodes], 0.95)[1] >= whole for nodes in chosen)
    assert held >= 180


def test_embeddings_of_other_nodes_or_of_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="are not of the same nodes"):
        similarity(_embeddings(0), _embeddings(1, 100), 0.99)
    broken = _embeddings(0)
    broken[3, 3] = np.nan
    with pytest.raises(ValueError, match="must be finite"):
        similarity(broken, _embeddings(1), 0.99)
