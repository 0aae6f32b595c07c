"""A lock belongs to whoever has it, to the end."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from handler.graph import holding
from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeArrays
from handler.graph.holding import LOCK_NAME, claim, hold, hold_new
from handler.graph.snapshot import Snapshot
from handler.graph.writer import write_snapshot


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    write_snapshot(tmp_path / "graph", GraphArrays("pair", EdgeArrays(np.array([[0], [1]])), 2))
    return tmp_path / "graph"


def test_many_hold_and_one_claims(bare: Path) -> None:
    with hold(bare), hold(bare):
        assert claim(bare) is None
    with hold(bare):
        assert claim(bare) is None
    claimed = claim(bare)
    assert claimed is not None
    assert claim(bare) is None
    claimed.close()
    claimed.close()
    with hold(bare) as held:
        assert held.folder == bare


def test_a_lock_that_is_missing_is_made(bare: Path) -> None:
    (bare / LOCK_NAME).unlink()
    with hold(bare):
        assert claim(bare) is None
    assert (bare / LOCK_NAME).read_bytes() == b""


def test_nothing_is_made_where_no_snapshot_is(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"manifest.json: missing"):
        hold(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert claim(tmp_path / "nowhere") is None


def test_a_new_folder_is_held_from_the_start(tmp_path: Path) -> None:
    with hold_new(tmp_path):
        assert claim(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_NAME]


def test_a_claim_that_is_over_soon_is_waited_for(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = claim(bare)
    assert claimed is not None
    monkeypatch.setattr(holding.time, "sleep", lambda _: claimed.close())
    hold(bare).close()


def test_a_claim_that_lasts_is_an_error(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "_PATIENCE_S", 0.05)
    with claim(bare) or pytest.fail("held"), pytest.raises(Exception, match="locked by another process"):
        hold(bare)


@pytest.mark.parametrize("error", [PermissionError(13, "denied"), OSError(30, "read-only file system")])
def test_what_can_only_be_read_is_opened_without_a_lock(
    bare: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith(LOCK_NAME):
            raise error
        return real(path, flags, mode)

    real = os.open
    monkeypatch.setattr(holding.os, "open", refuse)
    assert Snapshot.open(bare).num_nodes == 2


def test_a_lock_on_what_was_moved_away_does_not_count(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the file and locking it, another process had the time to replace the folder."""

    def late(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(holding.fcntl, "flock", flock)
        shutil.copytree(bare, bare.with_name("new"))
        bare.rename(bare.with_name("old"))
        bare.with_name("new").rename(bare)
        flock(descriptor, operation)

    flock = holding.fcntl.flock
    monkeypatch.setattr(holding.fcntl, "flock", late)
    with hold(bare):
        assert claim(bare) is None
