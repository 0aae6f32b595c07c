"""What can be asked of a graph, whether it changes or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from handler.graph.edges import EdgeFields
from handler.graph.ids import NodeId
from handler.graph.live_features import FeatureChanges
from handler.graph.manifest import Manifest
from handler.graph.sampler import Sampler
from handler.graph.sampling import Sampling


class ReadableIds(Protocol):
    """Between node ids and node indices; see `NodeIds`."""

    @property
    def id_type(self) -> type[int | str]:
        """Of all ids."""
        ...

    def __len__(self) -> int: ...

    def index_of(self, node_ids: Sequence[NodeId]) -> NDArray[np.int64]: ...

    def id_of(self, index: NDArray[np.int64]) -> list[NodeId]: ...


class ReadableFeatures(Protocol):
    """The features of nodes; see `Features`."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def gather(
        self, index: NDArray[np.int64], out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]: ...


class ReadableGraph(Protocol):
    """A snapshot, or a snapshot with what came since."""

    @property
    def folder(self) -> Path:
        """Of the snapshot."""
        ...

    @property
    def manifest(self) -> Manifest:
        """Of the snapshot."""
        ...

    @property
    def seq(self) -> int:
        """The latest mutation that counts."""
        ...

    @property
    def ids(self) -> ReadableIds: ...

    @property
    def features(self) -> ReadableFeatures | None: ...

    @property
    def num_nodes(self) -> int: ...

    @property
    def num_edges(self) -> int: ...

    @property
    def edge_fields(self) -> EdgeFields:
        """What is known of each edge."""
        ...

    @property
    def feature_changes(self) -> FeatureChanges:
        """Which features were set by which mutation; holds until the next change."""
        ...

    def sampler(self, sampling: Sampling | None = None) -> Sampler:
        """What samples the graph; `GraphInputError` where it does not store such an order."""
        ...
