"""What the number of a version's workers follows."""

from __future__ import annotations

from typing import Annotated

import msgspec

_Workers = Annotated[int, msgspec.Meta(ge=1, le=1_024)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]


class ScalePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many workers a version has.

    Args:
        min_workers, max_workers: it never has fewer or more.
        target_queue_ms: how long requests may wait in TorchServe's queue, on average.
        target_pending: how many may wait there for each worker.
        idle_ratio: a worker goes only if both would stay below this part of their targets without it.
        up_after_s: how long a target must be passed until a worker is added.
        down_after_s: how long there must be too many until one goes.
        cool_down_s: between two changes.
    """

    min_workers: _Workers = 1
    max_workers: _Workers = 2
    target_queue_ms: _Positive = 20.0
    target_pending: _Positive = 64.0
    idle_ratio: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.5
    up_after_s: _Seconds = 2.0
    down_after_s: _Seconds = 60.0
    cool_down_s: _Seconds = 30.0

    def __post_init__(self) -> None:
        if self.min_workers > self.max_workers:
            raise ValueError(
                f"min_workers is {self.min_workers}, which is above max_workers: {self.max_workers}"
            )
