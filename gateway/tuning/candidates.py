"""What is chosen between: the settings by which TorchServe runs a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

_ONE_ALONE = 1


@dataclass(frozen=True)
class Candidate:
    """Settings of an archive, as `hopserve pack` takes them.

    Args:
        num_workers: processes at the start.
        max_workers: up to which a model may be scaled.
        num_threads: of one forward; 0 divides the cores, less one, by `max_workers`.
    """

    batch_size: int
    max_batch_delay_ms: int
    num_workers: int
    max_workers: int
    num_threads: int

    def __str__(self) -> str:
        workers = f"{self.num_workers} worker{'s' * (self.num_workers > 1)}"
        threads = self.num_threads or "auto"
        return f"batch {self.batch_size}, delay {self.max_batch_delay_ms} ms, {workers}, threads {threads}"

    def pack_options(self) -> str:
        """By which `hopserve pack` makes such an archive."""
        return (
            f"--batch-size {self.batch_size} --max-batch-delay-ms {self.max_batch_delay_ms}"
            f" --workers {self.num_workers} --max-workers {self.max_workers}"
            f" --setting num_threads={self.num_threads}"
        )


@dataclass(frozen=True)
class Grid:
    """The values that each setting may have."""

    batch_sizes: tuple[int, ...] = (1, 8, 32, 64)
    delays_ms: tuple[int, ...] = (1, 2, 5)
    num_workers: tuple[int, ...] = (1, 2)
    num_threads: tuple[int, ...] = (1, 2)

    @property
    def num_values(self) -> int:
        """How many are tried at most, beside the present ones."""
        return sum(map(len, (self.batch_sizes, self.delays_ms, self.num_workers, self.num_threads)))

    def axes(self) -> tuple[str, ...]:
        """The settings, in the order in which they are tried: what changes most comes first."""
        return ("batch_size", "max_batch_delay_ms", "num_workers", "num_threads")

    def along(self, axis: str, best: Candidate) -> Iterator[Candidate]:
        """The candidates that differ from the best one so far in one setting only."""
        if axis == "batch_size":
            yield from (replace(best, batch_size=value) for value in self.batch_sizes)
        elif axis == "max_batch_delay_ms" and best.batch_size > _ONE_ALONE:  # one alone waits for nobody
            yield from (replace(best, max_batch_delay_ms=value) for value in self.delays_ms)
        elif axis == "num_workers":
            for value in self.num_workers:
                yield replace(best, num_workers=value, max_workers=max(best.max_workers, value))
        elif axis == "num_threads":
            yield from (replace(best, num_threads=value) for value in self.num_threads)
