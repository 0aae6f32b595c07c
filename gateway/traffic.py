"""Which version of which model gets how much traffic: what a rollout decides and Envoy carries out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

WHOLE = 10_000  # weights are counted in hundredths of a percent


@dataclass(frozen=True)
class VersionTraffic:
    """A version that can be asked.

    Args:
        weight: hundredths of a percent of the requests that name no version; those of a model's versions sum
            to `WHOLE`, or are all 0.
    """

    version: str
    weight: int

    @property
    def major(self) -> str:
        """What stands before the first dot."""
        return self.version.partition(".")[0]


@dataclass(frozen=True)
class ModelTraffic:
    """The versions of a model, in an order that stays: who is sticky moves only when the weights do.

    Args:
        shadow: a version that gets copies of requests, whose answers nobody sees.
        shadow_share: the share that is copied.
        compared_share: the share of the requests of which the controller gets a copy, to ask both versions.
    """

    model: str
    versions: tuple[VersionTraffic, ...]
    shadow: str | None = None
    shadow_share: float = 0.0
    compared_share: float = 0.0

    @property
    def majors(self) -> dict[str, tuple[VersionTraffic, ...]]:
        """The versions by their majors."""
        majors: dict[str, tuple[VersionTraffic, ...]] = {}
        for version in self.versions:
            majors[version.major] = (*majors.get(version.major, ()), version)
        return majors


@dataclass(frozen=True)
class Traffic:
    """All models."""

    models: tuple[ModelTraffic, ...]

    def names(self) -> Iterator[tuple[str, str]]:
        """Pairs of model and version."""
        for model in self.models:
            for version in model.versions:
                yield model.model, version.version
