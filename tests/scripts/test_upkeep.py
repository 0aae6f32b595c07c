"""What the command line does to a graph that changes."""

from __future__ import annotations

import json
from pathlib import Path

import click
import lmdb
import numpy as np
import pytest
from click.testing import CliRunner, Result

from handler.errors import LogUnavailable, SnapshotError
from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeArrays, EdgeBlock
from handler.graph.home import GraphHome, open_held, write_home
from handler.graph.mutations import Mutations, encode_mutations
from handler.graph.snapshot import Snapshot
from handler.log.embedded import LmdbLog
from handler.log.protocol import Record
from scripts.cli.look import info_command
from scripts.cli.upkeep import compact_command, repair_command

NONE = np.empty(0, dtype=np.int64)


@pytest.fixture
def home(tmp_path: Path) -> GraphHome:
    """Nodes 0 and 1, an edge between them, and nodes 10 and 11 in the log."""
    write_home(tmp_path / "graph", GraphArrays("pair", EdgeArrays(np.array([[0], [1]])), 2))
    home = GraphHome.read(tmp_path / "graph")
    _append(home, 0, 10)
    _append(home, 1, 11)
    return home


def _append(home: GraphHome, after_seq: int, node_id: int) -> None:
    node = Mutations(
        created=1.0, first_node=2 + after_seq, node_ids=[node_id], featured=NONE,
        features=np.empty((0, 0), dtype=np.float32),
        removed=EdgeBlock(NONE, NONE, None, np.empty(0)), added=EdgeBlock(NONE, NONE),
    )  # fmt: skip
    log = LmdbLog.open(home.log_folder, home.graph_id)
    log.append([Record(after_seq + 1, after_seq + 1, encode_mutations(node))], [], after_seq)
    log.close()


def _run(command: click.Command, home: GraphHome, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(command, [str(home.folder)], catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def _log_of(home: GraphHome) -> object:
    return json.loads(_run(info_command, home).stdout)["log"]


def _damage_last(home: GraphHome) -> None:
    with lmdb.open(str(home.log_folder), max_dbs=4) as env:
        records = env.open_db(b"records")
        with env.begin(write=True) as txn:
            key, value = max(txn.cursor(db=records))
            txn.put(key, value[:-1] + b"!", db=records)


def test_compact_says_what_came_of_it(home: GraphHome) -> None:
    result = _run(compact_command, home)
    size_mb = sum(file.stat().st_size for file in home.current.iterdir()) / 1e6
    assert result.stdout == (
        f"{home.folder}: complete up to mutation 2: 4 nodes, 1 edges, {size_mb:.1f} MB; removed snapshot-0;"
        " the log begins with mutation 3\n"
    )
    assert "merging neighbors" in result.stderr
    assert Snapshot.open(home.folder).num_nodes == 4
    again = _run(compact_command, home).stdout
    assert again == f"{home.folder}: nothing to fold: the snapshot is complete up to mutation 2\n"


def test_info_shows_how_far_a_snapshot_is_behind_its_log(home: GraphHome, tmp_path: Path) -> None:
    assert _log_of(home) == {"first_seq": 1, "last_seq": 2, "lag": 2}
    _run(compact_command, home)
    assert _log_of(home) == {"first_seq": 3, "last_seq": 2, "lag": 0}
    write_home(tmp_path / "new", GraphArrays("pair", EdgeArrays(np.array([[0], [1]])), 2))
    new = GraphHome.read(tmp_path / "new")
    assert _log_of(new) == {"first_seq": 1, "last_seq": 0, "lag": 0}
    assert not new.log_folder.exists()
    new.log_folder.mkdir()
    assert "problem" in str(_log_of(new))


def test_repair_cuts_a_damaged_log_and_says_what_is_lost(home: GraphHome) -> None:
    assert _run(repair_command, home).stdout == f"{home.folder}: the log is whole: 2 records\n"
    _damage_last(home)
    result = _run(repair_command, home)
    assert result.stdout == f"{home.folder}: mutations 2 to 2 are lost; 1 records are left\n"
    _run(compact_command, home)
    assert Snapshot.open(home.folder).ids.id_of(np.arange(3)) == [0, 1, 10]


def test_repair_says_when_the_snapshot_has_more_than_is_left(home: GraphHome) -> None:
    with open_held(home.folder):  # so that the log is kept
        _run(compact_command, home)
    _damage_last(home)
    result = _run(repair_command, home, exit_code=1)
    assert "the snapshot has mutations up to 2, but the log ends with 1" in result.output


def test_a_graph_that_is_served_is_not_repaired(home: GraphHome) -> None:
    with (
        open_held(home.folder),
        pytest.raises(SnapshotError, match="graph: is being served or read by a running process: stop it"),
    ):
        _run(repair_command, home)


def test_there_is_only_one_log_to_repair(tmp_path: Path) -> None:
    pair = GraphArrays("pair", EdgeArrays(np.array([[0], [1]])), 2)
    write_home(tmp_path / "remote", pair, log="redis://host/1")
    with pytest.raises(LogUnavailable, match="redis://host/1: only the log beside a graph can be repaired"):
        _run(repair_command, GraphHome.read(tmp_path / "remote"))
    write_home(tmp_path / "new", pair)
    with pytest.raises(LogUnavailable, match="new/log: there is no log of mutations yet"):
        _run(repair_command, GraphHome.read(tmp_path / "new"))


@pytest.mark.parametrize("command", [compact_command, repair_command])
def test_a_bare_snapshot_has_nothing_to_keep_up(home: GraphHome, command: click.Command) -> None:
    bare = GraphHome(home.current, home.graph_id, None)
    with pytest.raises(SnapshotError, match="graph.json: missing, so this folder is no home of a graph"):
        _run(command, bare)
