"""What a cache of model outputs promises to those who serve, and to those who look after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from handler.cache.outputs import Outputs

# timeout: no answer in time; unavailable: refused or broken; open: not asked, after several of these;
# full: no room, or more was put than could be written; corrupt: what was found cannot be right.
Failure = Literal["timeout", "unavailable", "open", "full", "corrupt"]
OnFailure = Callable[[Failure], None]


def ignore_failure(_failure: Failure) -> None:
    """For who does not count them."""


@dataclass(frozen=True)
class Found:
    """What a cache knows of some nodes.

    Args:
        place: int64 [num_found], ascending positions among the node ids that were asked for.
        outputs: of as many rows.
    """

    place: NDArray[np.int64]
    outputs: Outputs


class OutputCache(Protocol):
    """Outputs of one model on one graph; safe to use from several threads.

    What it finds is what was put, for the same node, model file and graph: whatever is damaged or foreign is
    a miss. It may lose anything at any time. No method raises; failures are counted by a callback.
    """

    def get(self, node_ids: Sequence[int | str]) -> Found:
        """What is known of these nodes; a failure is a miss."""
        ...

    def put(self, node_ids: Sequence[int | str], outputs: Outputs) -> None:
        """Hand over what is to be written soon, which must not change any more; never waits.

        What comes faster than it can be written is dropped.
        """
        ...

    def flush(self) -> None:
        """Wait until all that was put before is written, or failed."""
        ...

    def close(self) -> None:
        """Write what is left, for a few seconds at most; from then on all is a miss."""
        ...


@dataclass(frozen=True)
class VersionStats:
    """What a store holds of one version of a model.

    Args:
        num_bytes: of keys and values, without what the store itself needs.
        oldest_us, newest_us: when outputs were computed, in microseconds since 1970; 0 if none is readable.
    """

    version: str
    num_entries: int
    num_bytes: int
    oldest_us: int
    newest_us: int


class CacheStore(Protocol):
    """Where outputs of all versions are, for the command line; its methods raise `LogError`."""

    def stats(self) -> list[VersionStats]:
        """What there is, by version. It is counted while others write, so it is not of one moment."""
        ...

    def clear(self, version: str | None) -> int:
        """Remove a version's outputs, or without one all; how many were removed."""
        ...

    def close(self) -> None: ...
