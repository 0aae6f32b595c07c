"""The hashes are part of the snapshot format."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from handler.graph.hashing import edge_key, hash_bytes, mix64
from tests import reference


def test_mix64_is_splitmix64() -> None:
    # The first outputs of the reference implementation for seed 0 (Vigna, splitmix64.c).
    assert int(mix64(np.uint64(0))) == 0xE220A8397B1DCDAF
    assert int(mix64(np.uint64(0x9E3779B97F4A7C15))) == 0x6E789E6AA1B965F4


def test_keys_are_fixed() -> None:
    data = np.frombuffer(b"paper-7", dtype=np.uint8)
    assert int(hash_bytes(data, 0, len(data))) == reference.hash_id("paper-7") == 0xD6B21FCA1FB82DE5
    key = int(edge_key(np.uint64(0), mix64(np.uint64(42)), mix64(np.uint64(7))))
    assert key == reference.edge_key(0, 42, 7) == 0xB5FCC9469B2F9186


@given(st.integers(0, 2**64 - 1), st.binary(max_size=40))
def test_hashes_equal_the_reference(value: int, text: bytes) -> None:
    assert int(mix64(np.uint64(value))) == reference.mix64(value)
    data = np.frombuffer(b"x" + text + b"y", dtype=np.uint8)
    wanted = reference.mix64(_fnv1a(text))
    assert int(hash_bytes(data, 1, len(text) + 1)) == wanted


def _fnv1a(text: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in text:
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value
