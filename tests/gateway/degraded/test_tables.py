"""What is on the disk counts: newer tables, graphs and archives are taken up, broken ones never used."""

from __future__ import annotations

import shutil
import threading
import time
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from gateway.degraded import tables
from gateway.degraded.tables import LastAnswers, LastTable, NoTable
from handler.cache.table import Table, tables_in
from handler.errors import TableError
from handler.graph import compaction
from handler.graph.home import write_home
from tests.gateway.degraded.version import Version, write_archive
from tests.graphs import SmallGraph


@pytest.fixture
def version(tmp_path: Path) -> Version:
    return Version(tmp_path)


def _found(version: Version) -> LastTable:
    found = version.last.find("sage", "1.0")
    assert isinstance(found, LastTable)
    return found


def _none(version: Version) -> NoTable:
    found = version.last.find("sage", "1.0")
    assert isinstance(found, NoTable)
    return found


def _torn(path: Path) -> None:
    """Half of a file, in the place of the whole: what is mapped stays."""
    draft = path.with_name("draft")
    draft.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    draft.replace(path)


def test_a_table_is_found_by_what_the_archive_says_of_itself(version: Version) -> None:
    version.precompute()
    (version.store / "sage-1.0.mar").rename(version.store / "anything.mar")
    found = _found(version)
    assert found.table.manifest.num_nodes == found.graph.snapshot.num_nodes == 6
    assert found.graph.grows
    assert (found.archive.model, found.archive.version) == ("sage", "1.0")
    assert version.last.knows("sage", "1.0")


def test_nothing_is_opened_again_while_nothing_changes(version: Version) -> None:
    version.precompute()
    assert _found(version) is _found(version)


def test_a_newer_table_takes_the_place_of_the_older(version: Version) -> None:
    version.precompute(computed=1000.0)
    before = _found(version)
    version.precompute(computed=2000.0)
    after = _found(version)
    assert (before.table.manifest.computed, after.table.manifest.computed) == (1000.0, 2000.0)
    assert before.graph is after.graph
    assert np.isfinite(before.table.output).all()  # who had it in hand goes on


def test_versions_share_a_graph(version: Version) -> None:
    version.precompute()
    with zipfile.ZipFile(version.store / "sage-1.0.mar") as packed:
        files = {name: packed.read(name) for name in ("model-config.yaml", "signature.json")}
    write_archive(version.store / "other.mar", files, version="2.0")
    shutil.copytree(version.tables, version.tables.with_name("2.0"))
    other = version.last.find("sage", "2.0")
    assert isinstance(other, LastTable)
    assert other.graph is _found(version).graph


def test_a_graph_that_moved_on_is_opened_again_and_its_table_still_holds(version: Version) -> None:
    version.precompute()
    before = _found(version)
    described = {"node_id": 17, "x": [1.0, 2.0, 3.0], "neighbors": [1]}
    ((status, _),) = version.worker({"node": described, "store": True})
    assert status == 200
    assert compaction.main([str(version.graph)]) in {0, None}
    after = _found(version)
    assert (before.graph.snapshot.num_nodes, after.graph.snapshot.num_nodes) == (6, 7)
    assert after.table.manifest.seq == 0
    assert after.graph.snapshot.seq > 0
    assert before.graph.snapshot.manifest.snapshot_id != after.graph.snapshot.manifest.snapshot_id
    status, row = version.ask({"node_id": 5})
    assert status == 200
    assert row["graph"] == {"snapshot": after.table.manifest.snapshot_id, "seq": 0}  # what it was made of
    assert version.ask({"node_id": 17})[0] == 503
    version.precompute()
    status, row = version.ask({"node_id": 17})
    assert (status, row["graph"]["seq"]) == (200, after.graph.snapshot.seq)


def test_a_graph_that_was_built_anew_has_no_table(version: Version) -> None:
    version.precompute()
    _found(version)
    embeddings = version.folder / "kept"
    shutil.move(version.graph / "embeddings", embeddings)
    write_home(version.graph, SmallGraph([1, 2], [(0, 1)]).to_arrays(), replace=True)
    shutil.move(embeddings, version.graph / "embeddings")
    assert "no table" in _none(version).why


def test_a_folder_that_is_away_for_an_instant_is_waited_for_once(version: Version) -> None:
    version.precompute()
    before = _found(version)
    (folder,) = tables_in(version.tables)
    folder.rename(folder.with_name("away"))
    assert _found(version) is before
    folder.with_name("away").rename(folder)
    assert _found(version) is before
    folder.rename(folder.with_name("away"))
    assert _found(version) is before
    _none(version)
    folder.with_name("away").rename(folder)
    _found(version)


def test_a_table_that_is_replaced_while_it_is_opened_is_no_broken_one(
    version: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    version.precompute(computed=1000.0)
    before = _found(version)
    version.precompute(computed=2000.0)
    opened = Table.open

    def interrupted(folder: Path) -> Table:
        monkeypatch.setattr(Table, "open", opened)
        version.precompute(computed=3000.0)
        raise TableError(folder, "has files of two tables")

    monkeypatch.setattr(Table, "open", interrupted)
    assert _found(version) is before
    assert _found(version).table.manifest.computed == 3000.0


@pytest.mark.parametrize("name", ["output.npy", "fingerprint.npy", "sampled.npy", "table.json"])
@pytest.mark.parametrize("while_open", [False, True])
def test_a_torn_table_is_none(version: Version, name: str, while_open: bool) -> None:
    version.precompute()
    if while_open:
        _found(version)
    (folder,) = tables_in(version.tables)
    _torn(folder / name)
    assert _none(version).archive is not None
    version.precompute()
    _found(version)


def test_a_table_with_one_other_bit_is_none(version: Version) -> None:
    version.precompute()
    (folder,) = tables_in(version.tables)
    content = bytearray((folder / "output.npy").read_bytes())
    content[-1] ^= 1
    (folder / "output.npy").write_bytes(content)
    _none(version)


def test_where_the_newest_table_is_broken_an_older_one_counts(version: Version) -> None:
    version.precompute()
    (folder,) = tables_in(version.tables)
    newer = folder.with_name("table-9")
    shutil.copytree(folder, newer)
    (newer / "sampled.npy").unlink()
    assert _found(version).table.folder == folder


@pytest.mark.parametrize("tag", ["1", "no number"])
def test_a_table_of_another_model_is_none(version: Version, tag: str) -> None:
    version.precompute()
    (folder,) = tables_in(version.tables)
    text = (folder / "table.json").read_text()
    (folder / "table.json").write_text(text.replace(Table.open(folder).manifest.tag, tag))
    _none(version)


@pytest.mark.parametrize("name", ["indptr.npy", "manifest.json"])
def test_a_broken_graph_has_no_answers(version: Version, name: str) -> None:
    version.precompute()
    _found(version)
    path = version.graph / "snapshot-0" / name
    whole = path.read_bytes()
    _torn(path)
    if name != "manifest.json":  # only that tells that it was changed
        version.last = LastAnswers(version.properties, look_s=0)
    _none(version)
    path.write_bytes(whole)
    _found(version)


def test_a_graph_that_is_gone_has_no_answers(version: Version) -> None:
    version.precompute()
    before = _found(version)
    shutil.rmtree(version.graph)
    assert _found(version) is before
    _none(version)


def test_archives_come_change_and_go(version: Version) -> None:
    version.precompute()
    path = version.store / "sage-1.0.mar"
    path.rename(version.folder / "later.mar")
    assert _none(version).archive is None
    assert not version.last.knows("sage", "1.0")
    (version.folder / "later.mar").rename(path)
    before = _found(version)
    version.pack(max_nodes_per_request=3)
    after = _found(version)
    assert (before.archive.settings.max_nodes_per_request, after.archive.settings.max_nodes_per_request) == (
        2048,
        3,
    )


_CONFIG = yaml.safe_dump({"handler": {"graph": "g"}})


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"model-config.yaml": _CONFIG},
        {"model-config.yaml": _CONFIG, "signature.json": "{}"},
        {"model-config.yaml": _CONFIG, "signature.json": b"\xff"},
        {"model-config.yaml": "a: [", "signature.json": "{}"},
        {"model-config.yaml": b"\xff\x00", "signature.json": "{}"},
        {"model-config.yaml": "[1]", "signature.json": "{}"},
        {"model-config.yaml": "handler: 3", "signature.json": "{}"},
        {"model-config.yaml": "x" * (17 << 20), "signature.json": "{}"},
    ],
)
def test_archives_that_are_no_models_are_left_alone(version: Version, files: dict[str, Any]) -> None:
    version.precompute()
    write_archive(version.store / "other.mar", files, model="other")
    assert version.last.find("other", "1.0") == NoTable(
        None, "the model store has no archive of this model version"
    )
    _found(version)


def test_files_that_are_no_archives_are_left_alone(version: Version) -> None:
    version.precompute()
    whole = (version.store / "sage-1.0.mar").read_bytes()
    (version.store / "a.mar").write_bytes(b"")
    (version.store / "b.mar").write_bytes(whole[: len(whole) // 2])
    (version.store / "c.mar").mkdir()
    (version.store / "d.mar").symlink_to("nowhere")
    _found(version)
    (version.store / "sage-1.0.mar").unlink()
    assert _none(version).archive is None


def test_without_a_store_there_is_nothing(version: Version) -> None:
    shutil.rmtree(version.store)
    _none(version)


def test_another_graph_may_be_given(version: Version, tmp_path: Path) -> None:
    version.precompute()
    version.pack(graph="/nowhere")
    _none(version)
    version.last = LastAnswers(version.properties, graph=version.graph, look_s=0)
    _found(version)


def test_only_so_many_versions_are_open(version: Version) -> None:
    version.precompute()
    with zipfile.ZipFile(version.store / "sage-1.0.mar") as packed:
        files = {name: packed.read(name) for name in ("model-config.yaml", "signature.json")}
    for number in range(2, 6):
        write_archive(version.store / f"{number}.mar", files, version=f"{number}.0")
    last = LastAnswers(version.properties, look_s=0, max_open=2)
    last.warm_up()
    first = last.find("sage", "1.0")
    assert last.find("sage", "1.0") is first
    for number in range(2, 6):
        last.find("sage", f"{number}.0")
    assert len(last._watched) == 2
    assert last.find("sage", "1.0") is not first


def test_it_is_looked_at_the_disk_once_in_a_while_and_by_one_thread(
    version: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    version.precompute(computed=1000.0)
    version.last = LastAnswers(version.properties, look_s=0.2)
    looks: list[float] = []
    slow = tables.tables_in

    def counted(versions: Path) -> list[Path]:
        looks.append(time.monotonic())
        time.sleep(0.02)
        return slow(versions)

    monkeypatch.setattr(tables, "tables_in", counted)
    end = time.monotonic() + 0.7

    def ask() -> None:
        while time.monotonic() < end:
            _found(version)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    version.precompute(computed=2000.0)
    for thread in threads:
        thread.join()
    assert 2 <= len(looks) <= 5
    assert all(after - before >= 0.2 for before, after in pairwise(looks))
    assert _found(version).table.manifest.computed == 2000.0
