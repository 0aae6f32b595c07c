"""A stored answer is given exactly when the model would say the same now."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handler import metrics
from handler.cache.protocol import Found
from handler.graph.ordering import STRATEGIES, Ordering, Strategy
from handler.graph.rules import EdgeRules
from handler.graph.writer import BuildPlan
from handler.settings import ColdStage
from tests.graphs import EdgeData, graphs_with_edge_data
from tests.keeping import MODEL, TAG, Keeping, write_table
from tests.live import Change, LiveEdge, SlowGraph, changes
from tests.models import random_model
from tests.served import close

WEIGHTED = random_model((3, 2), edge_inputs=("edge_weight", "edge_attr"), edge_dim=1)[0]
rules = st.builds(EdgeRules, st.booleans(), st.sampled_from(["drop", "sum", "keep"]), st.booleans())


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Keeping]:
    keeping = Keeping(tmp_path)
    yield keeping
    keeping.service.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    graphs_with_edge_data(),
    st.sampled_from(STRATEGIES),
    rules,
    st.sampled_from([MODEL, WEIGHTED]),
    st.booleans(),
    st.data(),
)
def test_after_any_changes_no_answer_differs_from_a_live_one(
    graph: EdgeData, strategy: Strategy, rules: EdgeRules, config: Any, late: bool, data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        kept = Keeping(Path(folder), graph, BuildPlan(Ordering(strategy), rules=rules), config, late=late)
        slow = SlowGraph.of(graph, rules)
        for _ in range(data.draw(st.integers(1, 4))):
            if data.draw(st.booleans()):
                kept.precompute()
            change = data.draw(changes(slow.ids))
            kept.apply(change)
            slow.apply(change)
            if data.draw(st.booleans()):
                kept.afterwards.catch_up()  # what was computed before the change is kept after it
            asked = data.draw(st.lists(st.sampled_from(slow.ids), min_size=1, max_size=6))
            rows = kept.ask(node_ids=asked)["predictions"]
            live = kept.ask(node_ids=asked, max_staleness_ms=0)["predictions"]
            for row, right in zip(rows, live, strict=True):
                assert right["source"] == "live"
                assert close(row["embedding"], right["embedding"])
                assert (row["label"], row["sampled"]) == (right["label"], right["sampled"])
                assert row["graph"] == right["graph"]


def test_an_answer_is_from_the_table_then_the_cache_then_the_model(ring: Keeping) -> None:
    assert ring.sources() == "llllll"
    assert ring.sources() == "cccccc"
    ring.precompute()
    assert ring.sources() == "pppppp"
    ring.apply(Change(added=(LiveEdge(0, 3, 1.0, 0.0, 0.0),)))  # into 3, of which 4 and 1 sample, and 5 by 4
    ring.counters.drain()
    sources = ring.sources()
    assert sources[0] == sources[2] == "p"
    assert sources[3] == "l"
    stale = sources.count("l")
    assert ring.counted(metrics.STORED) == {
        ("table", "hit"): 6 - stale,
        ("table", "stale"): stale,
        ("cache", "stale"): stale,
    }
    assert ring.sources() == sources.replace("l", "c")


def test_options_that_ask_for_something_else_are_computed(ring: Keeping) -> None:
    ring.precompute()
    assert ring.ask(node_id=1)["source"] == "precomputed"
    assert ring.ask(node_id=1, num_hops=1)["source"] == "live"
    assert ring.ask(node_id=1, num_neighbors=1)["source"] == "live"
    assert ring.ask(node_id=1, max_staleness_ms=0)["source"] == "live"
    described = ring.ask(node={"x": [1, 2, 3], "neighbors": [1, 2]})
    assert described["source"] == "live"
    assert ring.ask(node_id=1)["source"] == "precomputed"


def test_neighbors_and_pairs_come_with_stored_answers(ring: Keeping) -> None:
    ring.precompute()
    stored = ring.ask(node_id=1, **{"return": ["neighbors"]})
    live = ring.ask(node_id=1, max_staleness_ms=0, **{"return": ["neighbors"]})
    assert (stored["source"], stored["neighbors"]) == ("precomputed", live["neighbors"])


def test_an_answer_may_be_as_old_as_the_client_allows(ring: Keeping) -> None:
    ring.precompute(computed=time.time() - 60)
    before = ring.ask(node_id=3)
    assert before["source"] == "precomputed"
    assert 60_000 <= before["age_ms"] < 120_000
    ring.apply(Change(added=(LiveEdge(0, 3, 1.0, 0.0, 0.0),)))
    aged = ring.ask(node_id=3, max_staleness_ms=600_000)
    assert (aged["source"], aged["graph"]["seq"]) == ("precomputed", 0)
    assert close(aged["embedding"], before["embedding"])
    assert ring.ask(node_id=3, max_staleness_ms=1000)["source"] == "live"
    assert ring.ask(node_id=3, max_staleness_ms=600_000, min_seq=1)["graph"]["seq"] == 1
    fresh = ring.ask(node_id=3, max_staleness_ms=1000)
    assert (fresh["source"], fresh["graph"]["seq"]) == ("cache", 1)


def test_a_default_for_the_age_is_configured(tmp_path: Path) -> None:
    kept = Keeping(tmp_path, max_staleness_ms=60_000)
    kept.precompute()
    kept.apply(Change(added=(LiveEdge(0, 3, 1.0, 0.0, 0.0),)))
    assert kept.ask(node_id=3)["graph"]["seq"] == 0
    assert kept.counted(metrics.STORED) == {("table", "aged"): 1}


def test_a_tree_that_is_cut_is_never_stored(tmp_path: Path) -> None:
    kept = Keeping(tmp_path, max_nodes_per_forward=3)
    assert kept.ask(node_id=1)["sampled"]["truncated"]
    assert kept.ask(node_id=1)["source"] == "live"


def test_a_cache_that_fails_is_done_without(ring: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(node_ids: Any) -> Found:
        raise RuntimeError("broken")

    monkeypatch.setattr(ring.cache, "get", fail)
    assert ring.sources() == "llllll"
    assert ring.counted(metrics.CACHE_FAILURES) == {("internal",): 1}


@pytest.mark.parametrize("harm", ["tag", "truncated", "corrupt", "manifest"])
def test_a_table_that_cannot_be_used_is_left_alone(tmp_path: Path, harm: str) -> None:
    kept = Keeping(tmp_path)
    write_table(kept.versions, kept.graph, kept.model, TAG + (harm == "tag"))
    (folder,) = kept.versions.iterdir()
    output = folder / "output.npy"
    if harm == "truncated":
        output.write_bytes(output.read_bytes()[:-4])
    if harm == "corrupt":
        output.write_bytes(output.read_bytes()[:-4] + b"\0\0\0\1")
    if harm == "manifest":
        (folder / "table.json").write_text("{")
    kept.store.look()
    assert kept.sources() == "llllll"


def test_a_newer_table_is_taken_up_and_the_older_one_goes(ring: Keeping) -> None:
    ring.precompute()
    ring.apply(Change(nodes=(6,), features=((6, 2.0),), added=(LiveEdge(0, 6, 1.0, 0.0, 0.0),)))
    assert ring.sources() == "ppppppl"
    ring.precompute()
    assert ring.sources() == "ppppppp"
    assert [folder.name for folder in ring.versions.iterdir()] == ["table-1"]


STAGES = (
    ColdStage(until_h=72, method="expanded", factor=2, fallbacks=("features",)),
    ColdStage(until_h=24, method="features", fallbacks=("mean",)),
)


def _newcomer(ring: Keeping, age_h: float, change: Change) -> None:
    ring.apply(change)
    ring.graph.created[-1] = time.time() - age_h * 3600


@pytest.mark.parametrize(
    ("age_h", "source", "stage"),
    [(1, "features", "until_24h"), (30, "expanded", "until_72h"), (100, "live", None)],
)
def test_new_nodes_go_through_stages(tmp_path: Path, age_h: float, source: str, stage: str | None) -> None:
    kept = Keeping(tmp_path, cold_start=STAGES)
    edges = tuple(LiveEdge(node, 6, 1.0, 0.0, 0.0) for node in range(5))
    _newcomer(kept, age_h, Change(nodes=(6,), features=((6, 2.0),), added=edges))
    answer = kept.ask(node_id=6, **{"return": ["embedding", "neighbors"]})
    assert answer["source"] == source
    assert kept.counted(metrics.COLD_START) == ({} if stage is None else {(stage,): 1})
    assert [len(hop) for hop in answer["neighbors"]][:1] == {"features": [], "expanded": [5], "live": [3]}[
        source
    ]
    assert kept.ask(node_id=6, max_staleness_ms=0)["source"] == "live"
    assert kept.ask(node_id=0)["source"] == "live"
    assert kept.ask(node_id=0)["source"] == "cache"


def test_a_stage_that_has_nothing_to_go_by_falls_back(tmp_path: Path) -> None:
    kept = Keeping(tmp_path, cold_start=STAGES)
    _newcomer(kept, 1, Change(nodes=(6,)))
    assert kept.ask(node_id=6)["source"] == "live"  # nothing is precomputed
    kept.precompute()
    answer = kept.ask(node_id=6)
    assert answer["source"] == "fallback"
    table = kept.store.kept
    assert table is not None
    assert close(answer["embedding"], table.table.output.mean(axis=0)[:4])
    kept.graph.created[-1] = time.time() - 30 * 3600
    assert kept.ask(node_id=6)["source"] == "precomputed"  # neither neighbors nor features: as all others


def test_features_are_what_the_model_says_of_a_node_alone(tmp_path: Path) -> None:
    kept = Keeping(tmp_path, cold_start=STAGES)
    _newcomer(kept, 1, Change(nodes=(6, 7), features=((6, 2.0), (7, 2.0)), added=(LiveEdge(0, 7, 1, 0, 0),)))
    kept.graph.created[:] = [time.time()] * 2
    alone = kept.ask(node_id=6, max_staleness_ms=0)
    assert close(kept.ask(node_id=7)["embedding"], alone["embedding"])
