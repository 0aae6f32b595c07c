"""The bytes of one node's output in a store, and of the key it lies under."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

import numpy as np
import xxhash

from handler.cache.outputs import Outputs
from handler.cache.protocol import Found

# "hop1", read as a number; another layout has another one.
_MAGIC = 0x31706F68
_MAX_KEY_BYTES = 400
_HEADER = np.dtype(
    [
        ("magic", "<u4"),
        ("dim", "<u4"),
        ("tag", "<u8"),
        ("fingerprint", "<u8"),
        ("seq", "<i8"),
        ("computed_us", "<i8"),
        ("num_nodes", "<i4"),
        ("padding", "<u4"),
        ("checksum", "<u8"),
    ]
)
HEADER_BYTES = _HEADER.itemsize
_SUM_AT = HEADER_BYTES - 8


@dataclass(frozen=True)
class Unpacked:
    """What is right among stored values, and how many were damaged."""

    found: Found
    num_corrupt: int


class Values:
    """Keys and values of one version of a model.

    Args:
        version: of the model, as its clients know it.
        tag: which model file and which graph the outputs are of; below 2^64.
        dim: numbers in an output.
        space: what each key begins with.
    """

    def __init__(self, version: str, tag: int, dim: int, space: str = "") -> None:
        self._prefix = node_prefix(version, space)
        self._tag, self._dim = tag, dim
        self._row = np.dtype([*_fields(), ("output", "<f4", (dim,))])

    def keys(self, node_ids: Sequence[int | str]) -> list[bytes]:
        """The keys of nodes. A graph has ids of one type, so that 7 and "7" never meet."""
        prefix = self._prefix
        keys = [f"{prefix}:{node_id}".encode(errors="surrogatepass") for node_id in node_ids]
        return [key if len(key) <= _MAX_KEY_BYTES else self._hashed(key) for key in keys]

    def pack(self, keys: Sequence[bytes], outputs: Outputs) -> list[bytes]:
        """The values under these keys, each sealed together with its key."""
        rows = np.zeros(len(outputs), self._row)
        rows["magic"], rows["dim"], rows["tag"] = _MAGIC, self._dim, self._tag
        for name in ("fingerprint", "seq", "computed_us", "num_nodes", "output"):
            rows[name] = getattr(outputs, name)
        packed, size = rows.tobytes(), self._row.itemsize
        values = [packed[start : start + size] for start in range(0, len(packed), size)]
        return [_sealed(key, value) for key, value in zip(keys, values, strict=True)]

    def unpack(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> Unpacked:
        """What the values under these keys say; None is a value that is not there."""
        size = self._row.itemsize
        places: list[int] = []
        sized: list[bytes] = []
        checksums: list[int] = []
        num_corrupt = 0
        for at, value in enumerate(values):
            if value is None:
                continue
            if len(value) == size:
                places.append(at)
                sized.append(value)
                checksums.append(_checksum(keys[at], value))
            elif not _is_intact(keys[at], value):  # else it is of another model
                num_corrupt += 1
        rows = np.frombuffer(b"".join(sized), self._row)
        intact = rows["checksum"] == np.array(checksums, np.uint64)
        num_corrupt += int((~intact).sum())
        own = (rows["magic"] == _MAGIC) & (rows["dim"] == self._dim) & (rows["tag"] == self._tag)
        right = np.flatnonzero(intact & own)
        return Unpacked(Found(np.array(places, np.int64)[right], _outputs(rows, right)), num_corrupt)

    def nothing(self) -> Found:
        """No output at all."""
        return self.unpack([], []).found

    def _hashed(self, key: bytes) -> bytes:
        node_id = key[len(self._prefix) + 1 :]
        return f"{self._prefix}#{hashlib.blake2b(node_id, digest_size=16).hexdigest()}".encode()


def node_prefix(version: str, space: str = "") -> str:
    """What all keys of a version begin with; a colon or a hash follows."""
    return f"{space}{quote(version, safe='')}:node"


def version_of(key: bytes) -> str:
    """The version of a key, without what its store put before it."""
    return unquote(key.partition(b":")[0].decode(errors="replace"))


def computed_us(value: bytes) -> int | None:
    """When a value was computed, by the header that it begins with; None if that is none."""
    if len(value) < HEADER_BYTES:
        return None
    header = np.frombuffer(value, _HEADER, count=1)[0]
    return int(header["computed_us"]) if header["magic"] == _MAGIC else None


def _fields() -> list[tuple[str, str]]:
    return [(name, _HEADER[name].str) for name in _HEADER.names or ()]


def _checksum(key: bytes, value: bytes) -> int:
    return xxhash.xxh3_64_intdigest(key + value[:_SUM_AT] + value[HEADER_BYTES:])


def _sealed(key: bytes, value: bytes) -> bytes:
    return value[:_SUM_AT] + _checksum(key, value).to_bytes(8, "little") + value[HEADER_BYTES:]


def _is_intact(key: bytes, value: bytes) -> bool:
    return _checksum(key, value).to_bytes(8, "little") == value[_SUM_AT:HEADER_BYTES]


def _outputs(rows: np.ndarray, right: np.ndarray) -> Outputs:
    return Outputs(
        rows["output"][right],
        rows["fingerprint"][right],
        rows["seq"][right],
        rows["computed_us"][right],
        rows["num_nodes"][right],
    )
