"""Edges on their way into a snapshot: block by block, so that they need not fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphInputError

BLOCK_EDGES = 1 << 20


@dataclass(frozen=True)
class EdgeFields:
    """What is known of each edge beside its ends.

    Args:
        weight: float32.
        time: float64, in a unit of the user's.
        attr_dim: number of edge features, 0 for none.
        attr_dtype: float32 or float16.
    """

    weight: bool = False
    time: bool = False
    attr_dim: int = 0
    attr_dtype: str = "float32"


@dataclass(frozen=True)
class EdgeBlock:
    """Some edges, in the order in which they came.

    Args:
        source, target: integers [num_edges], node indices; a node is computed from the sources of the
            edges that point to it.
        weight: float32 [num_edges], or none.
        time: float64 [num_edges], or none.
        attr: float32 or float16 [num_edges, attr_dim], or none.
    """

    source: NDArray[np.integer]
    target: NDArray[np.integer]
    weight: NDArray[np.float32] | None = None
    time: NDArray[np.float64] | None = None
    attr: NDArray[np.floating] | None = None

    def __len__(self) -> int:
        return len(self.source)

    def columns(self) -> dict[str, NDArray[Any]]:
        """The arrays that are there, by name."""
        named = {
            "source": self.source,
            "target": self.target,
            "weight": self.weight,
            "time": self.time,
            "attr": self.attr,
        }
        return {name: values for name, values in named.items() if values is not None}

    def take(self, chosen: NDArray[Any] | slice) -> EdgeBlock:
        """The edges at `chosen`: positions, a mask or a slice."""
        return EdgeBlock(**{name: values[chosen] for name, values in self.columns().items()})


class Edges(Protocol):
    """Edges that can be read block by block, as often as needed and always in the same order."""

    fields: EdgeFields

    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[EdgeBlock]: ...


class EdgeArrays:
    """Edges in memory.

    Args:
        edge_index: integers [2, num_edges], from row 0 to row 1, as node indices.
        weight: numbers [num_edges], or none.
        time: numbers [num_edges], or none.
        attr: numbers [num_edges, attr_dim], or none; float16 and float32 stay as they are.

    Raises:
        GraphInputError: dtypes or shapes are wrong.
    """

    def __init__(
        self,
        edge_index: NDArray[Any],
        weight: NDArray[Any] | None = None,
        time: NDArray[Any] | None = None,
        attr: NDArray[Any] | None = None,
    ) -> None:
        if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype.kind not in "iu":
            raise GraphInputError(
                "edge_index must be integers [2, num_edges],"
                f" but is {edge_index.dtype} {list(edge_index.shape)}"
            )
        count = edge_index.shape[1]
        self._all = EdgeBlock(
            edge_index[0],
            edge_index[1],
            None if weight is None else _numbers("edge_weight", weight, 1, count).astype(np.float32),
            None if time is None else _numbers("edge_time", time, 1, count).astype(np.float64),
            None if attr is None else as_float(_numbers("edge_attr", attr, 2, count)),
        )
        attr = self._all.attr
        self.fields = EdgeFields(
            weight is not None,
            time is not None,
            0 if attr is None else attr.shape[1],
            "float32" if attr is None else str(attr.dtype),
        )

    def __len__(self) -> int:
        return len(self._all)

    def blocks(self) -> Iterator[EdgeBlock]:
        for start in range(0, len(self), BLOCK_EDGES):
            yield self._all.take(slice(start, start + BLOCK_EDGES))


class EdgeSpool:
    """Edges in files, one per column: what does not fit into memory waits here for its second reading.

    Args:
        folder: an empty folder of its own; whoever made it removes it.
        fields: what every block has.
        index: dtype of the node indices.
    """

    def __init__(self, folder: Path, fields: EdgeFields, index: str | np.dtype[Any] = "int64") -> None:
        self.fields = fields
        self._dtypes = {"source": np.dtype(index), "target": np.dtype(index)}
        if fields.weight:
            self._dtypes["weight"] = np.dtype(np.float32)
        if fields.time:
            self._dtypes["time"] = np.dtype(np.float64)
        if fields.attr_dim:
            self._dtypes["attr"] = np.dtype((fields.attr_dtype, (fields.attr_dim,)))
        self._paths = {name: folder / f"{name}.bin" for name in self._dtypes}
        self._files: dict[str, IO[bytes]] = {name: path.open("w+b") for name, path in self._paths.items()}
        self._num_edges = 0

    def __len__(self) -> int:
        return self._num_edges

    def append(self, block: EdgeBlock) -> None:
        """Add edges behind those that are there; `OSError` where the disk has no room."""
        self.write_at(self._num_edges, block)
        self._num_edges += len(block)

    def write_at(self, position: int, block: EdgeBlock) -> None:
        """Write edges at a place of their own; `resize` says how many there are in all."""
        columns = block.columns()
        for name, dtype in self._dtypes.items():
            file = self._files[name]
            file.seek(position * dtype.itemsize)
            file.write(
                np.ascontiguousarray(columns[name], dtype=dtype.base).data.cast("B") if len(block) else b""
            )

    def resize(self, num_edges: int) -> None:
        """Say how many edges there are, when they were written out of order."""
        self._num_edges = num_edges

    def read(self, start: int, end: int) -> EdgeBlock:
        """Edges `start` to `end`."""
        columns: dict[str, NDArray[Any]] = {}
        for name, dtype in self._dtypes.items():
            file = self._files[name]
            file.seek(start * dtype.itemsize)
            raw = np.frombuffer(bytearray(file.read((end - start) * dtype.itemsize)), dtype=dtype.base)
            columns[name] = raw.reshape(-1, *dtype.shape)
        return EdgeBlock(**columns)

    def blocks(self) -> Iterator[EdgeBlock]:
        for start in range(0, self._num_edges, BLOCK_EDGES):
            yield self.read(start, min(start + BLOCK_EDGES, self._num_edges))

    def close(self) -> None:
        """Close and remove the files."""
        for name, file in self._files.items():
            file.close()
            self._paths[name].unlink(missing_ok=True)


def index_dtype(num_nodes: int) -> np.dtype[Any]:
    """The smallest dtype that holds the node indices of a graph."""
    return np.dtype(np.int32 if num_nodes < 2**31 else np.int64)


def as_float(values: NDArray[Any]) -> NDArray[np.floating]:
    """Numbers as float32, but float16 as it is."""
    return values if values.dtype == np.float16 else values.astype(np.float32, copy=False)


def _numbers(name: str, values: NDArray[Any], ndim: int, count: int) -> NDArray[Any]:
    shape = "[num_edges]" if ndim == 1 else "[num_edges, attr_dim]"
    if values.ndim != ndim or len(values) != count or values.dtype.kind not in "fiub":
        raise GraphInputError(
            f"{name} must be numbers {shape} for {count} edges, but is {values.dtype} {list(values.shape)}"
        )
    return values
