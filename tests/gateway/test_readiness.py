"""Which versions must have workers before a server is said to be ready."""

from __future__ import annotations

from datetime import UTC, datetime

from gateway.readiness import Readiness, most_asked
from gateway.rollout.manifest import Manifest, Model, Version, VersionState
from gateway.upstream.store import StoredArchive

_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
_NOTHING = Manifest()


def _stored(model: str, *versions: str) -> list[StoredArchive]:
    return [StoredArchive(f"{model}-{version}.mar", model, version) for version in versions]


def _version(name: str, weight: int, state: VersionState = "ready") -> Version:
    return Version(version=name, archive=f"m-{name}.mar", registered_at=_AT, weight=weight, state=state)


def _of(*versions: Version) -> Manifest:
    return Manifest(models={"m": Model(versions=versions)})


def test_without_rollouts_it_is_the_default_of_each_model() -> None:
    """Which comes first in the store's list; the archive that changes the graph counts, too."""
    archives = [*_stored("graph", "1.0"), *_stored("m", "2.0", "1.0")]
    assert most_asked(archives, _NOTHING) == {("graph", "1.0"), ("m", "2.0")}
    assert most_asked([], _NOTHING) == set()


def test_it_is_the_version_with_most_of_the_traffic() -> None:
    archives = _stored("m", "1.0", "2.0")
    assert most_asked(archives, _of(_version("1.0", 9_000), _version("2.0", 1_000))) == {("m", "1.0")}
    assert most_asked(archives, _of(_version("1.0", 1_000), _version("2.0", 9_000))) == {("m", "2.0")}


def test_an_archive_that_was_only_put_there_does_not_count() -> None:
    assert most_asked(_stored("m", "1.0", "2.0"), _of(_version("1.0", 10_000))) == {("m", "1.0")}


def test_a_version_that_was_unregistered_does_not_count() -> None:
    archives = _stored("m", "1.0", "2.0")
    known = _of(_version("1.0", 0, "retired"), _version("2.0", 0))
    assert most_asked(archives, known) == {("m", "2.0")}
    assert most_asked(_stored("m", "1.0"), known) == set()


def test_it_is_said_in_one_line() -> None:
    assert str(Readiness("ready")) == "ready"
    assert str(Readiness("loading", "no worker of m 1.0 is ready")) == "loading: no worker of m 1.0 is ready"
