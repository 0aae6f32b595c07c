"""What one of those that take turns did in one of its turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import psutil
from numpy.typing import NDArray

from gateway.tuning.load import Answered

ASKER = "asker"


@dataclass(frozen=True)
class Lap:
    """What was measured of one who was asked for a while.

    Args:
        seconds: that it took.
        cpu_s: seconds of the processor, by what ran there.
    """

    answers: list[Answered]
    seconds: float
    cpu_s: dict[str, float]

    @cached_property
    def rate(self) -> float:
        """Requests a second that were answered well."""
        return sum(answer.status == 200 for answer in self.answers) / self.seconds

    @cached_property
    def taken_ms(self) -> NDArray[np.float64]:
        """Milliseconds of each."""
        return np.array([answer.seconds for answer in self.answers]) * 1000


def run_lap(
    send: Callable[[], list[Answered]], processes: Mapping[str, Sequence[psutil.Process]] | None = None
) -> Lap:
    """Send, and note what it takes.

    Args:
        processes: whose time is noted, by name; the asker's own without it.
    """
    noted = {ASKER: [psutil.Process()]} if processes is None else processes
    before, started = _cpu_s(noted), time.monotonic()
    answers = send()
    taken_s, after = time.monotonic() - started, _cpu_s(noted)
    return Lap(answers, taken_s, {name: after[name] - before[name] for name in after})


def _cpu_s(processes: Mapping[str, Sequence[psutil.Process]]) -> dict[str, float]:
    """Seconds of the processor that each has had so far."""
    return {
        name: sum(times.user + times.system for times in (process.cpu_times() for process in group))
        for name, group in processes.items()
    }
