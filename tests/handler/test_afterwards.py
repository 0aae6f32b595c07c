"""What no answer needs is done at once, or when it is said."""

from __future__ import annotations

from pathlib import Path

from handler import metrics
from handler.afterwards import Afterwards
from tests.keeping import Keeping
from tests.live import Change


def test_work_is_done_at_once_or_when_it_is_said() -> None:
    done: list[int] = []
    afterwards = Afterwards()
    afterwards.do(lambda: done.append(1))
    assert done == [1]
    afterwards.postpone()
    for number in (2, 3):
        afterwards.do(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == [1]
    afterwards.catch_up()
    afterwards.catch_up()
    assert done == [1, 2, 3]


def test_work_that_fails_keeps_nothing_else_from_being_done() -> None:
    done: list[int] = []
    afterwards = Afterwards()
    afterwards.postpone()
    afterwards.do(lambda: 1 // 0)
    afterwards.do(lambda: done.append(1))
    afterwards.catch_up()
    assert done == [1]


def test_an_answer_is_kept_and_counted_once_it_is_on_its_way(tmp_path: Path) -> None:
    kept = Keeping(tmp_path, late=True)
    assert kept.sources() == "l" * kept.graph.num_nodes
    assert kept.sources() == "l" * kept.graph.num_nodes
    assert not kept.counted(metrics.REQUESTS)
    kept.afterwards.catch_up()
    assert kept.counted(metrics.REQUESTS) == {("200",): 2}
    assert kept.sources() == "c" * kept.graph.num_nodes
    kept.service.close()


def test_what_changes_before_an_answer_is_kept_makes_it_stale(tmp_path: Path) -> None:
    kept = Keeping(tmp_path, late=True)
    assert kept.sources() == "l" * kept.graph.num_nodes
    kept.apply(Change(features=((3, 2.0),)))  # which not all sample
    kept.afterwards.catch_up()
    assert kept.sources() == "clclll"
    kept.service.close()
