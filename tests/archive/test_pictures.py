"""Pictures show what there is, at any size, in files that need no others."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from archive import degrees as degrees_module
from archive import picture_files
from archive.degrees import count_degrees
from archive.picture_files import check_picture_path
from archive.pictures import draw_degrees, draw_sample
from handler.errors import GraphInputError
from handler.graph.adjacency import Adjacency
from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeArrays
from handler.graph.fanout import FanoutPlan
from handler.graph.snapshot import Snapshot

PNG = b"\x89PNG\r\n\x1a\n"


class _Cells(HTMLParser):
    """The text of a page's table, row by row."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._in_cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
        self._in_cell = tag in {"td", "th"}

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data


def _of_degrees(degree: NDArray[np.int64]) -> Adjacency:
    indptr = np.concatenate([[0], np.cumsum(degree)])
    return Adjacency(indptr, np.zeros(int(indptr[-1]), dtype=np.int32))


@pytest.fixture
def cycle(make_snapshot: Callable[..., Snapshot]) -> Snapshot:
    """Edges d -> b -> a, c -> a, and back: a -> b; with ids that a page must be careful with."""
    edges = EdgeArrays(np.array([[1, 2, 3, 0], [0, 0, 1, 1]]))
    return make_snapshot(GraphArrays("cycle", edges, 4, ids=["<a>", "$b$", "猫\n", "d" * 40]))


def test_degrees_are_counted_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    degree = np.random.default_rng(0).integers(0, 50, 1000)
    monkeypatch.setattr(degrees_module, "_BLOCK_NODES", 7)
    counted = count_degrees(_of_degrees(degree))
    assert np.array_equal(counted.degree, np.unique(degree))
    assert np.array_equal(counted.count, np.unique(degree, return_counts=True)[1])
    assert counted.isolated == (degree == 0).sum()
    for share in (0.01, 0.5, 0.99, 1):
        assert counted.quantile(share) == np.quantile(degree, share, method="inverted_cdf")


def test_every_node_is_in_one_bin(tmp_path: Path) -> None:
    degree = np.array([0, 0, 1, 1, 1, 2, 9, 10, 4000])
    draw_degrees(count_degrees(_of_degrees(degree)), tmp_path / "degrees.html", "<g>")
    rows = _Cells((tmp_path / "degrees.html").read_text()).rows
    assert rows[:4] == [["in-neighbors", "nodes"], ["0", "2"], ["1", "3"], ["2", "1"]]
    assert sum(int(count) for _, count in rows[1:]) == len(degree)
    assert rows[-1] == ["3,000 to 4,000", "1"] or rows[-1][0].endswith("to 4,000")


@pytest.mark.parametrize("degree", [[0, 0], [1], [0, 1, 2]])
def test_the_smallest_graphs_have_a_picture(tmp_path: Path, degree: list[int]) -> None:
    draw_degrees(count_degrees(_of_degrees(np.array(degree))), tmp_path / "degrees.png", "g")
    assert (tmp_path / "degrees.png").read_bytes().startswith(PNG)


def test_a_sample_lists_each_node_once_at_its_first_hop(cycle: Snapshot, tmp_path: Path) -> None:
    trees = cycle.sampler().trees(np.array([0]), FanoutPlan.of((9, 9)))
    draw_sample(cycle, trees, tmp_path / "sample.html", "the <title>")
    page = (tmp_path / "sample.html").read_text()
    rows = _Cells(page).rows
    assert rows[:2] == [["hop", "nodes", "node ids"], ["0", "1", "<a>"]]
    assert sorted(rows[2][2].split(", ")) == ["$b$", "猫\n"]
    assert rows[3] == ["2", "1", "d" * 40]
    assert "4 nodes and 4 edges; as a tree 5 nodes and 4 edges" in page
    assert "<h1>the &lt;title&gt;</h1>" in page
    assert "<a>" not in page
    assert not re.search(r"""(?:src|href)=["'](?!#)|@import|url\((?!#)""", page), "something is fetched"


def test_a_sample_is_a_png_too(cycle: Snapshot, tmp_path: Path) -> None:
    trees = cycle.sampler().trees(np.array([0]), FanoutPlan.of((9, 9)))
    draw_sample(cycle, trees, tmp_path / "sample.PNG", "t")
    assert (tmp_path / "sample.PNG").read_bytes().startswith(PNG)


def test_a_seed_alone_has_a_picture(cycle: Snapshot, tmp_path: Path) -> None:
    trees = cycle.sampler().trees(np.array([3]), FanoutPlan.of((2, 2)))
    draw_sample(cycle, trees, tmp_path / "alone.html", "t")
    assert _Cells((tmp_path / "alone.html").read_text()).rows[1:] == [["0", "1", "d" * 40]]


@pytest.mark.timeout(60)
def test_thousands_of_nodes_are_drawn(make_snapshot: Callable[..., Snapshot], tmp_path: Path) -> None:
    ends = np.random.default_rng(0).integers(0, 20_000, (2, 400_000))
    snapshot = make_snapshot(GraphArrays("large", EdgeArrays(ends), 20_000))
    trees = snapshot.sampler().trees(np.array([5]), FanoutPlan.of((20, 20, 20)))
    assert len(trees.node) > 5000
    for ending in ("png", "html"):
        draw_sample(snapshot, trees, tmp_path / f"large.{ending}", "large")
        assert (tmp_path / f"large.{ending}").stat().st_size > 10_000


def test_pyplot_is_left_alone(cycle: Snapshot, tmp_path: Path) -> None:
    trees = cycle.sampler().trees(np.array([0]), FanoutPlan.of((9,)))
    before = sys.modules.pop("matplotlib.pyplot", None)
    draw_sample(cycle, trees, tmp_path / "sample.png", "t")
    assert sys.modules.pop("matplotlib.pyplot", None) is None
    if before is not None:
        sys.modules["matplotlib.pyplot"] = before


def test_without_matplotlib_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_files, "find_spec", lambda name: None)
    with pytest.raises(GraphInputError, match=r"pictures need matplotlib: pip install 'hopserve\[plot\]'"):
        check_picture_path(tmp_path / "a.png")


def test_another_ending_is_refused_by_name(cycle: Snapshot, tmp_path: Path) -> None:
    degrees = count_degrees(cycle.adjacency)
    with pytest.raises(GraphInputError, match=r"sample.pdf: a picture's name must end in .png or .html"):
        draw_degrees(degrees, tmp_path / "sample.pdf", "t")


def test_a_file_is_written_whole_or_not_at_all(cycle: Snapshot, tmp_path: Path) -> None:
    degrees = count_degrees(cycle.adjacency)
    with pytest.raises(GraphInputError, match=r"no/such/place.png: cannot be written: No such file"):
        draw_degrees(degrees, tmp_path / "no" / "such" / "place.png", "t")
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(GraphInputError, match=r"taken.png: cannot be written: Is a directory"):
        draw_degrees(degrees, tmp_path / "taken.png", "t")
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []
