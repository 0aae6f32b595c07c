"""A graph's home: one snapshot counts, and none goes while somebody reads it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from handler.errors import GraphInputError, SnapshotError
from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeArrays
from handler.graph.home import (
    GraphHome,
    compaction_lock,
    oldest_held_seq,
    open_held,
    remove_unused,
    write_home,
)
from handler.graph.layout import CURRENT_NAME, GRAPH_NAME
from handler.graph.ordering import Ordering
from handler.graph.snapshot import Snapshot, verify
from handler.graph.writer import add_ordering, write_snapshot

PAIR = GraphArrays("pair", EdgeArrays(np.array([[0], [1]])), 2)
_HOLDER = """
import sys
from pathlib import Path
from handler.graph.home import open_held
held = open_held(Path(sys.argv[1]))
print(held.snapshot.folder.name, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> GraphHome:
    write_home(tmp_path / "graph", PAIR)
    return GraphHome.read(tmp_path / "graph")


def _advance(home: GraphHome, seq: int) -> None:
    """What a compaction does to the files."""
    shutil.copytree(home.current, home.snapshot_folder(seq))
    home.move_current(seq)


@contextmanager
def _reader(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds what counts now."""
    command = [sys.executable, "-c", _HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("snapshot-")
        yield process
        process.kill()


def test_a_home_has_an_id_and_its_first_snapshot(home: GraphHome) -> None:
    assert re.fullmatch("[0-9a-f]{16}", home.graph_id)
    assert json.loads((home.folder / GRAPH_NAME).read_text()) == {
        "format_version": 1, "graph_id": home.graph_id, "log": None
    }  # fmt: skip
    assert (home.folder / CURRENT_NAME).read_text() == "snapshot-0\n"
    assert (home.current, home.current_seq) == (home.folder / "snapshot-0", 0)
    assert sorted(path.name for path in home.folder.iterdir()) == ["CURRENT", "graph.json", "snapshot-0"]
    assert [path.name for path in home.folder.parent.iterdir()] == ["graph"]
    assert home.log_folder == home.folder / "log"


def test_every_build_is_another_graph(home: GraphHome, tmp_path: Path) -> None:
    write_home(tmp_path / "other", PAIR, log="redis://host/1")
    other = GraphHome.read(tmp_path / "other")
    assert other.graph_id != home.graph_id
    assert other.log == "redis://host/1"


def test_a_home_is_opened_wherever_a_snapshot_is(home: GraphHome) -> None:
    assert Snapshot.open(home.folder).folder == home.current
    assert verify(home.folder).num_edges == 1
    assert Snapshot.open(home.current).num_nodes == 2
    with open_held(home.folder) as held:
        assert held.home == home
        assert held.snapshot.folder == home.current


def test_a_bare_snapshot_is_held_without_a_home(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "bare", PAIR)
    with open_held(tmp_path / "bare") as held:
        assert held.home is None
        assert held.snapshot.num_nodes == 2


def test_opening_follows_current(home: GraphHome) -> None:
    old = open_held(home.folder)
    _advance(home, 7)
    assert home.current_seq == 7
    with open_held(home.folder) as new:
        assert new.snapshot.folder.name == "snapshot-7"
    assert old.snapshot.folder.name == "snapshot-0"
    assert list(home.folder.glob(".*")) == []


def test_current_never_names_what_is_not_there(home: GraphHome) -> None:
    with pytest.raises(SnapshotError, match=r"snapshot-9/manifest.json: missing"):
        home.move_current(9)
    assert home.current_seq == 0


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        (CURRENT_NAME, None, r"graph/CURRENT: missing, so this folder is no home"),
        (CURRENT_NAME, b"", r"graph/CURRENT: holds '', not the name of a snapshot such as snapshot-0"),
        (CURRENT_NAME, b"../other", r"graph/CURRENT: holds '\.\./other', not the name"),
        (CURRENT_NAME, b"snapshot-00\n", "graph/CURRENT: holds 'snapshot-00'"),
        (CURRENT_NAME, b"snapshot-0\nsnapshot-1\n", "graph/CURRENT: holds"),
        (CURRENT_NAME, b"\xff\x00", "graph/CURRENT: holds"),
        (CURRENT_NAME, b"snapshot-3\n", r"graph/CURRENT: names snapshot-3, which is missing"),
        (GRAPH_NAME, None, r"graph/graph.json: missing, so this folder is no home"),
        (GRAPH_NAME, b"{", r"graph/graph.json: does not describe a graph"),
        (GRAPH_NAME, b"\xff", r"graph/graph.json: does not describe a graph"),
        (GRAPH_NAME, b'{"format_version": 2}', r"graph.json: format_version is 2, this Hopserve reads 1"),
        (
            GRAPH_NAME,
            b'{"format_version": 1, "graph_id": "x", "log": null}',
            r"graph.json: does not describe a graph: .*`\$.graph_id`",
        ),
        ("snapshot-0/manifest.json", None, r"snapshot-0/manifest.json: missing"),
        ("snapshot-0/indices.npy", b"junk", r"snapshot-0/indices.npy: truncated"),
    ],
)
def test_what_is_garbled_is_refused_by_file(
    home: GraphHome, file: str, content: bytes | None, problem: str
) -> None:
    path = home.folder / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    for read in (Snapshot.open, open_held):
        with pytest.raises(SnapshotError, match=problem):
            read(home.folder)


def test_a_build_that_fails_leaves_no_home(tmp_path: Path) -> None:
    with pytest.raises(GraphInputError):
        write_home(tmp_path / "graph", GraphArrays("g", EdgeArrays(np.array([[0], [2]])), 2))
    assert not list(tmp_path.iterdir())


def test_a_build_that_is_killed_leaves_no_home(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from handler.graph import home
from tests.handler.graph.test_home import PAIR
home.write_current = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # the last thing it writes
home.write_home(Path(sys.argv[1]), PAIR)
"""
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "graph")], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "graph").exists()


def test_a_snapshot_that_is_held_stays_until_its_reader_is_killed(home: GraphHome) -> None:
    with _reader(home.folder) as reader:
        _advance(home, 5)
        assert remove_unused(home) == []
        assert oldest_held_seq(home) == 0
        os.kill(reader.pid, signal.SIGKILL)
        reader.wait()
        assert remove_unused(home) == [0]
    assert oldest_held_seq(home) == 5
    assert sorted(path.name for path in home.folder.iterdir()) == ["CURRENT", "graph.json", "snapshot-5"]


def test_a_hold_outlives_an_ordering_that_is_added(home: GraphHome) -> None:
    """A new manifest takes the old one's place, so it cannot be what is locked."""
    with open_held(home.folder) as held:
        add_ordering(home.folder, Ordering("first"))
        assert list(Snapshot.open(home.folder).manifest.orderings()) == ["seeded", "first"]
        _advance(home, 1)
        assert remove_unused(home) == []
        held.close()
        assert remove_unused(home) == [0]


def test_a_hold_ends_when_it_is_forgotten(home: GraphHome) -> None:
    held = open_held(home.folder)
    _advance(home, 1)
    del held
    assert remove_unused(home) == [0]


def test_a_reader_goes_on_with_what_was_removed(home: GraphHome) -> None:
    snapshot = Snapshot.open(home.folder)
    _advance(home, 1)
    assert remove_unused(home) == [0]
    assert not snapshot.folder.exists()
    assert snapshot.adjacency.indices.tolist() == [0]


def test_neither_the_current_snapshot_nor_a_newer_one_is_removed(home: GraphHome) -> None:
    _advance(home, 3)
    shutil.copytree(home.current, home.snapshot_folder(8))  # written, and about to become current
    assert remove_unused(home) == [0]
    assert remove_unused(home) == []
    assert home.snapshot_folder(8).exists()
    assert home.current.exists()


def test_leftovers_are_removed_but_a_build_at_work_is_not(home: GraphHome) -> None:
    left = home.folder / ".snapshot-4-leftover"
    shutil.copytree(home.current, left)
    without_lock = home.folder / ".snapshot-5-leftover"
    without_lock.mkdir()
    at_work = home.folder / ".snapshot-6-work"
    shutil.copytree(home.current, at_work)
    with open_held(at_work):
        assert remove_unused(home) == []
    assert sorted(path.name for path in home.folder.glob(".*")) == [without_lock.name, at_work.name]
    os.utime(without_lock, (time.time() - 3600,) * 2)
    remove_unused(home)
    assert list(home.folder.glob(".*")) == []


def test_a_build_holds_what_it_writes(home: GraphHome, monkeypatch: pytest.MonkeyPatch) -> None:
    from handler.graph import files

    write_manifest = files.write_manifest

    def meddle(folder: Path, manifest: files.Manifest) -> None:
        remove_unused(home)
        write_manifest(folder, manifest)

    monkeypatch.setattr(files, "write_manifest", meddle)
    write_snapshot(home.snapshot_folder(2), PAIR)
    home.move_current(2)
    assert Snapshot.open(home.folder).folder.name == "snapshot-2"


def test_current_moves_while_readers_open(home: GraphHome) -> None:
    """Whatever a reader gets is whole, and stays so while it is held."""
    done, opened, problems = threading.Event(), set[str](), list[Exception]()

    def read() -> None:
        try:
            while not done.is_set():
                with open_held(home.folder) as held:
                    opened.add(held.snapshot.folder.name)
                    assert (held.snapshot.folder / "indices.npy").exists()
                assert Snapshot.open(home.folder).num_edges == 1
        except (SnapshotError, OSError, AssertionError) as error:
            problems.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for seq in range(1, 60):
        _advance(home, seq)
        remove_unused(home)
    done.set()
    for reader in readers:
        reader.join()
    assert problems == []
    assert len(opened) > 5
    remove_unused(home)
    assert oldest_held_seq(home) == 59


def test_one_process_compacts_at_a_time(home: GraphHome) -> None:
    with compaction_lock(home):
        with (
            pytest.raises(SnapshotError, match="graph: is being compacted by another process"),
            compaction_lock(home),
        ):
            pass
        with pytest.raises(SnapshotError, match="is being compacted"):
            add_ordering(home.folder, Ordering("first"))
    with compaction_lock(home):
        pass


@pytest.mark.parametrize("write", [write_home, write_snapshot])
@pytest.mark.parametrize("write_again", [write_home, write_snapshot])
def test_a_graph_is_replaced_whole_unless_it_is_held(
    tmp_path: Path, write: Callable[..., object], write_again: Callable[..., object]
) -> None:
    folder = tmp_path / "graph"
    write(folder, PAIR)
    (folder / "log").mkdir()
    with pytest.raises(SnapshotError, match="a snapshot is there already"):
        write_again(folder, PAIR)
    larger = GraphArrays("larger", EdgeArrays(np.array([[0], [1]])), 3)
    with open_held(folder), pytest.raises(SnapshotError, match="graph: is being served or read by a running"):
        write_again(folder, larger, replace=True)
    assert Snapshot.open(folder).num_nodes == 2
    write_again(folder, larger, replace=True)
    assert Snapshot.open(folder).num_nodes == 3
    assert not (folder / "log").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


def test_a_reader_of_an_old_snapshot_protects_the_whole_home(home: GraphHome) -> None:
    with _reader(home.folder):
        _advance(home, 1)
        with pytest.raises(SnapshotError, match="is being served"):
            write_home(home.folder, PAIR, replace=True)


def test_a_reader_that_comes_during_the_build_keeps_the_graph(home: GraphHome) -> None:
    def open_now(step: str) -> None:
        if step == "computing checksums":
            readers.append(open_held(home.folder))

    readers: list[object] = []
    progress = _Watching(open_now)
    with pytest.raises(SnapshotError, match="is being served"):
        write_home(home.folder, PAIR, replace=True, progress=progress)
    assert readers
    assert GraphHome.read(home.folder) == home
    assert [path.name for path in home.folder.parent.iterdir()] == ["graph"]


class _Watching:
    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say

    @contextmanager
    def bar(self, step: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
        yield lambda done: None


def test_a_folder_with_some_graph_file_of_its_own_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / GRAPH_NAME).write_text('{"mine": 1}')
    with pytest.raises(SnapshotError, match="exists and is no graph snapshot"):
        write_home(tmp_path, PAIR, replace=True)
    assert (tmp_path / GRAPH_NAME).read_text() == '{"mine": 1}'
