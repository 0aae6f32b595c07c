"""The bytes of keys and values."""

from __future__ import annotations

import numpy as np
import pytest

from handler.cache.value import Values, computed_us, version_of
from tests.handler.cache.samples import DIM, assert_same, outputs_of

_IDS = [7, 3, 2**62]


@pytest.fixture
def values() -> Values:
    return Values("1.0", 2**63 + 5, DIM)


def test_keys_are_readable(values: Values) -> None:
    assert values.keys([7, -1, np.int64(3)]) == [b"1.0:node:7", b"1.0:node:-1", b"1.0:node:3"]
    assert values.keys(["a:b", "é", ""]) == [b"1.0:node:a:b", "1.0:node:é".encode(), b"1.0:node:"]


def test_a_long_id_is_hashed(values: Values) -> None:
    room = 400 - len("1.0:node:")
    longest, one, other = values.keys(["x" * room, "x" * (room + 1), "x" * (room + 2)])
    assert longest == b"1.0:node:" + b"x" * room
    assert one != other
    assert all(key.startswith(b"1.0:node#") and len(key) == 41 for key in (one, other))


def test_an_id_that_is_no_text_has_a_key(values: Values) -> None:
    assert len(values.keys(["\ud800"])) == 1


@pytest.mark.parametrize("version", ["1.0", "a:node:b", "ü*[x]?"])
def test_a_key_names_its_version(version: str) -> None:
    for key in Values(version, 1, DIM).keys([7, "a:node:b", "y" * 500]):
        assert version_of(key) == version
    (key,) = Values(version, 1, DIM, "hopserve:m:").keys([7])
    assert key.startswith(b"hopserve:m:")


def test_a_round_trip(values: Values) -> None:
    keys = values.keys(_IDS)
    packed = values.pack(keys, outputs_of(_IDS))
    unpacked = values.unpack([keys[0], b"absent", *keys[1:]], [packed[0], None, *packed[1:]])
    assert unpacked.num_corrupt == 0
    assert unpacked.found.place.tolist() == [0, 2, 3]
    assert_same(unpacked.found.outputs, outputs_of(_IDS))
    assert computed_us(packed[0]) == 1_700_000_000_000_007


def test_what_was_found_can_be_changed(values: Values) -> None:
    keys = values.keys(_IDS)
    found = values.unpack(keys, values.pack(keys, outputs_of(_IDS))).found
    found.outputs.output[:] = 0


def test_nothing(values: Values) -> None:
    assert len(values.nothing().place) == len(values.nothing().outputs) == 0
    assert values.nothing().outputs.output.shape == (0, DIM)


@pytest.mark.parametrize("other", [Values("1.0", 1, DIM), Values("1.0", 2**63 + 5, DIM + 1)])
def test_of_another_model_is_a_miss(values: Values, other: Values) -> None:
    keys = values.keys(_IDS)
    unpacked = other.unpack(keys, values.pack(keys, outputs_of(_IDS)))
    assert (len(unpacked.found.place), unpacked.num_corrupt) == (0, 0)


def test_under_another_key_it_is_corrupt(values: Values) -> None:
    keys = values.keys(_IDS)
    unpacked = values.unpack(keys[::-1], values.pack(keys, outputs_of(_IDS)))
    # The one in the middle is where it was.
    assert (unpacked.found.place.tolist(), unpacked.num_corrupt) == ([1], 2)


def test_a_flipped_byte_anywhere_is_corrupt(values: Values) -> None:
    keys = values.keys(_IDS)
    packed = values.pack(keys, outputs_of(_IDS))
    for at in range(len(packed[1])):
        damaged = bytearray(packed[1])
        damaged[at] ^= 0x10
        unpacked = values.unpack(keys, [packed[0], bytes(damaged), packed[2]])
        assert (unpacked.found.place.tolist(), unpacked.num_corrupt) == ([0, 2], 1)


def test_another_length_is_corrupt(values: Values) -> None:
    (key,) = values.keys([7])
    (packed,) = values.pack([key], outputs_of([7]))
    for damaged in [packed + b"\0", *(packed[:size] for size in range(len(packed)))]:
        unpacked = values.unpack([key], [damaged])
        assert (len(unpacked.found.place), unpacked.num_corrupt) == (0, 1)
