"""What a run measures, as it comes; `report.json` has it all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from tests.bench.laps import ASKER, Lap

NOOP, LIVE, CACHED, LISTS = "no-op", "live", "cached", "lists"
WITH_INGEST = "live with ingest"
FASTAPI, FASTAPI_WHOLE = "FastAPI", "FastAPI, whole neighborhood"


class Part(msgspec.Struct, kw_only=True):
    """What became of one part.

    Args:
        reason: why it is not there, or not as a whole.
        notes: what one must know to read its numbers.
    """

    name: str
    seconds: float = 0.0
    reason: str | None = None
    notes: list[str] = []


class Turn(msgspec.Struct, kw_only=True):
    """How one server answered in one round.

    Args:
        part: turns of one part can be compared, and no others.
        rate: of an open loop, the requests a second that were sent; none in a closed loop.
        share: what `rate` is of the throughput in a closed loop.
        per_s: requests a second that were answered well.
        failed: answers other than 200.
        asker_cores: how many cores the load generator took of those that all share.
    """

    part: str
    name: str
    connections: int
    round: int
    per_s: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    num_answers: int
    failed: int
    asker_cores: float
    rate: float | None = None
    share: float | None = None

    @classmethod
    def of(cls, lap: Lap, **known: Any) -> Turn:
        """From what was measured.

        Raises:
            RuntimeError: nothing was answered well.
        """
        good = sum(answer.status == 200 for answer in lap.answers)
        if not good:
            statuses = sorted({answer.status for answer in lap.answers})
            raise RuntimeError(f"{known['name']}: no request was answered well, statuses are {statuses}")
        p50, p90, p99, p999 = map(float, np.quantile(lap.taken_ms, [0.5, 0.9, 0.99, 0.999]))
        return cls(
            per_s=lap.rate,
            p50_ms=p50,
            p90_ms=p90,
            p99_ms=p99,
            p999_ms=p999,
            num_answers=len(lap.answers),
            failed=len(lap.answers) - good,
            asker_cores=lap.cpu_s[ASKER] / lap.seconds,
            **known,
        )


class Floor(msgspec.Struct, kw_only=True):
    """What this machine can do at least, on one thread.

    Args:
        gather_gb_per_s: of copied rows of features.
        reads_m_per_s: millions of neighbours read a second.
    """

    batch: int
    gflops: float
    gather_gb_per_s: float
    reads_m_per_s: float
    us_per_seed: dict[str, float]


class Stages(msgspec.Struct, kw_only=True):
    """Medians of one round of batches, in microseconds per seed.

    Args:
        floor_us, pyg_us: by what was done.
        total_us, total_p90_us, floor_total_us: of sums, not sums of medians.
    """

    batch: int
    round: int
    stages_us: dict[str, float]
    floor_us: dict[str, float]
    pyg_us: dict[str, float]
    total_us: float
    total_p90_us: float
    floor_total_us: float


class Counting(msgspec.Struct, kw_only=True):
    """Answers of one round with all metrics and with none, in microseconds per node."""

    batch: int
    round: int
    counted_us: float
    uncounted_us: float


class Neighbors(msgspec.Struct, kw_only=True):
    """PyG's `NeighborLoader` beside the pipeline in one round, in microseconds per seed."""

    batch: int
    round: int
    loader_us: float
    ours_us: float


class Growth(msgspec.Struct, kw_only=True):
    """Answers about one node each, in one round."""

    num_edges: int
    num_nodes: int
    round: int
    p50_us: float
    p99_us: float


class Results(msgspec.Struct, kw_only=True):
    """A run so far.

    Args:
        machine, settings: by name.
    """

    started: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    interrupted: bool = False
    parts: list[Part] = []
    floor: list[Floor] = []
    stages: list[Stages] = []
    counting: list[Counting] = []
    neighbors: list[Neighbors] = []
    turns: list[Turn] = []
    growth: list[Growth] = []

    def closed(self, part: str, name: str, connections: int) -> dict[int, Turn]:
        """Turns in a closed loop, by round."""
        return {
            turn.round: turn
            for turn in self.turns
            if (turn.part, turn.name, turn.connections) == (part, name, connections) and turn.rate is None
        }

    def opened(self, part: str, name: str, share: float) -> list[Turn]:
        """Turns in an open loop at a share of the throughput."""
        return [turn for turn in self.turns if (turn.part, turn.name, turn.share) == (part, name, share)]

    def kinds(self, part: str) -> Iterator[tuple[str, int, float | None]]:
        """What was asked of whom in a part, once each, in order: name, connections and share."""
        seen = dict.fromkeys((t.name, t.connections, t.share) for t in self.turns if t.part == part)
        yield from seen
