"""Archives are what they say they are, oldest first."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from gateway.errors import UpstreamError
from gateway.upstream.store import list_archives, remember_default


def _archive(path: Path, **model: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": model}))


def test_archives_are_listed_by_what_they_hold(tmp_path: Path) -> None:
    for name, version in (("z.mar", "2.0"), ("b.mar", "10.0"), ("a.mar", "2.0.1"), ("c.mar", "2.0-rc")):
        _archive(tmp_path / name, modelName="sage", modelVersion=version)
    _archive(tmp_path / "other.mar", modelName="gat", modelVersion="1.0")
    (tmp_path / "README.md").write_text("not an archive")
    found = [(archive.model, archive.version, archive.file_name) for archive in list_archives(tmp_path)]
    assert found == [
        ("gat", "1.0", "other.mar"),
        ("sage", "2.0", "z.mar"),
        ("sage", "2.0.1", "a.mar"),
        ("sage", "2.0-rc", "c.mar"),
        ("sage", "10.0", "b.mar"),
    ]


def test_the_default_version_comes_first(tmp_path: Path) -> None:
    for version in ("1.0", "2.0", "3.0"):
        _archive(tmp_path / f"sage-{version}.mar", modelName="sage", modelVersion=version)
    remember_default(tmp_path, "sage", "3.0")
    remember_default(tmp_path, "gat", "7.0")
    remember_default(tmp_path, "sage", "2.0")
    assert [archive.version for archive in list_archives(tmp_path)] == ["2.0", "1.0", "3.0"]
    (tmp_path / "default-versions.json").write_text("[")
    with pytest.raises(UpstreamError, match=r"default-versions.json: cannot be read"):
        list_archives(tmp_path)


def test_an_empty_store_has_none(tmp_path: Path) -> None:
    assert list_archives(tmp_path) == []


def test_a_file_that_is_no_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "junk.mar").write_bytes(b"PK junk")
    with pytest.raises(UpstreamError, match=r"junk.mar: not a model archive"):
        list_archives(tmp_path)
    (tmp_path / "junk.mar").unlink()
    _archive(tmp_path / "odd.mar", modelName="sage")
    with pytest.raises(UpstreamError, match="missing required field `modelVersion`"):
        list_archives(tmp_path)
