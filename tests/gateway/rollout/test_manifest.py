"""The state on the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from gateway.errors import RolloutError
from gateway.rollout.manifest import Manifest, ManifestFile, Model, Version

_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def _manifest(*names: str) -> Manifest:
    versions = tuple(Version(version=name, archive=f"{name}.mar", registered_at=_AT) for name in names)
    return Manifest(models={"graphsage": Model(versions=versions)})


def test_without_a_file_there_is_nothing(tmp_path: Path) -> None:
    assert ManifestFile(tmp_path / "none").read() == Manifest()


def test_what_was_written_is_read_by_others(tmp_path: Path) -> None:
    with ManifestFile(tmp_path).changing() as write:
        write(_manifest("1.0"))
        assert ManifestFile(tmp_path).read() == _manifest("1.0")
    assert [path.name for path in tmp_path.iterdir() if "lock" not in path.name] == ["rollouts.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no state of rollouts"),
        (b'{"format_version": 1, "models": {"m": {"versions": [{}]}}}', "is no state of rollouts"),
        (b'{"format_version": 2, "models": {}}', "has format 2, and this Hopserve reads 1"),
        (b'{"format_version": 1, "models": {}, "more": 1}', "is no state of rollouts"),
    ],
)
def test_what_is_no_state_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = ManifestFile(tmp_path)
    file.path.write_bytes(content)
    with pytest.raises(RolloutError, match=message):
        file.read()
    assert file.path.read_bytes() == content


def test_changes_follow_one_another(tmp_path: Path) -> None:
    """Each reads what the one before has written, however many there are at a time."""

    def add(write: Callable[[Manifest], None], number: int) -> None:
        model = file.read().models.get("graphsage", Model())
        versions = (*model.versions, Version(version=str(number), archive="", registered_at=_AT))
        write(Manifest(models={"graphsage": msgspec.structs.replace(model, versions=versions)}))

    def change(number: int) -> None:
        with ManifestFile(tmp_path).changing() as write:
            add(write, number)

    file = ManifestFile(tmp_path)
    threads = [threading.Thread(target=change, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(version.version) for version in file.read().models["graphsage"].versions) == [
        *range(20)
    ]
