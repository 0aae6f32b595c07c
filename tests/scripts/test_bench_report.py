"""The report of `scripts/bench`: what it says of made-up measurements, and that its peer answers the same."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from handler.graph.snapshot import Snapshot
from tests.bench.pipeline import LAYER_FANOUTS, PLAN, Sage, make_graph
from tests.bench.report.command import PARTS, run_report
from tests.bench.report.plots import write_plots
from tests.bench.report.ratios import TARGETS, batch_name, workers_name
from tests.bench.report.render import to_json, to_markdown
from tests.bench.report.results import (
    CACHED,
    FASTAPI,
    FASTAPI_WHOLE,
    LISTS,
    LIVE,
    NOOP,
    Counting,
    Growth,
    Part,
    Results,
    Stages,
    Turn,
)
from tests.served import Answering, close, exported

_STAGE_NAMES = ("sample", "batch", "gather", "forward")


def _turn(part: str, name: str, connections: int, number: int, per_s: float, **options: Any) -> Turn:
    times = {"p50_ms": 2.0, "p90_ms": 2.5, "p99_ms": 3.0, "p999_ms": 4.0}
    counts = {"num_answers": 10, "failed": 0, "asker_cores": 0.5}
    place = {"part": part, "name": name, "connections": connections, "round": number}
    return Turn(**place, per_s=per_s, **times, **counts, **options)


def _results() -> Results:
    results = Results(started="now", machine={"cores": 2}, settings={"quick": True})
    results.parts = [Part(name="neighborloader", reason="left out: not | installed"), Part(name="served")]
    for number, noise in enumerate((1.0, 1.1, 0.8)):
        for connections in (1, 16, 64):
            rates = {NOOP: 1000.0, LIVE: 900.0 * noise, CACHED: 950.0, LISTS: 160.0}
            results.turns += [
                _turn("served", name, connections, number, rate) for name, rate in rates.items()
            ]
        results.turns.append(_turn("served", LIVE, 0, number, 440, rate=450.0, share=0.5))
        rates = {LIVE: 900.0, FASTAPI: 450.0, FASTAPI_WHOLE: 100.0}
        results.turns += [_turn("fastapi", name, 64, number, rate) for name, rate in rates.items()]
        results.turns.append(_turn("workers", workers_name(1), 64, number, 900))
        results.turns.append(_turn("batches", batch_name(1), 64, number, 300))
        results.stages.append(
            Stages(
                batch=32,
                round=number,
                stages_us=dict.fromkeys(_STAGE_NAMES, 5.0),
                floor_us={"matrices": 10.0, "rows": 5.0, "adjacency": 1.0},
                pyg_us={"pyg_loader": 50.0, "pyg_forward": 90.0},
                total_us=20.0,
                total_p90_us=25.0,
                floor_total_us=16.0,
            )
        )
        results.counting.append(
            Counting(batch=32, round=number, counted_us=20.4 * noise, uncounted_us=20.0 * noise)
        )
        for size, p99_us in ((1_000_000, 200.0), (100_000_000, 260.0)):
            results.growth.append(
                Growth(num_edges=size, num_nodes=size // 10, round=number, p50_us=100.0, p99_us=p99_us)
            )
    return results


def test_ratios_are_flat_and_finite_each_with_its_spread() -> None:
    report = json.loads(to_json(_results()))
    ratios = report["ratios"]
    assert all(isinstance(value, float) and math.isfinite(value) for value in ratios.values())
    assert ratios["live_vs_noop_64"] == pytest.approx(0.9)
    assert report["spread"]["live_vs_noop_64"] == pytest.approx([0.72, 0.99])
    assert ratios["cached_vs_noop_64"] == pytest.approx(0.95)
    assert ratios["pipeline_vs_floor"] == pytest.approx(1.25)
    assert ratios["metrics_cost_32"] == pytest.approx(1.02)
    assert ratios["vs_fastapi"] == pytest.approx(9)
    assert ratios["vs_fastapi_same_samples"] == pytest.approx(2)
    assert ratios["p99_100m_vs_1m"] == pytest.approx(1.3)
    assert report["spread"].keys() == ratios.keys()
    assert report["numbers"]["lists_nodes_per_s_16"] == 16_000
    assert report["targets"]["vs_fastapi"] == {"at_least": 15, "met": False}


def test_what_was_not_measured_is_absent() -> None:
    report = json.loads(to_json(_results()))
    assert "vs_neighborloader" not in report["ratios"]
    assert "two_workers_vs_one" not in report["ratios"]
    assert report["targets"]["vs_neighborloader"]["met"] is None
    assert json.loads(to_json(Results(started="now", machine={}, settings={})))["ratios"] == {}


def test_the_page_has_each_target_and_whether_it_is_met() -> None:
    page = to_markdown(_results(), ["throughput.png"])
    rows = {
        target.name: line for line in page.splitlines() for target in TARGETS if f"`{target.name}`" in line
    }
    assert rows.keys() == {target.name for target in TARGETS}
    assert rows["live_vs_noop_64"].endswith("| 0.90 | 0.72 to 0.99 | >= 0.8 | yes |")
    assert rows["vs_fastapi"].endswith("| NO |")
    assert "not measured" in rows["vs_neighborloader"]
    assert "left out: not / installed" in page
    assert "![throughput.png](throughput.png)" in page


def test_all_is_drawn_that_there_is(tmp_path: Path) -> None:
    assert sorted(write_plots(tmp_path, _results())) == sorted(path.name for path in tmp_path.iterdir())
    assert len(list(tmp_path.glob("*.png"))) == 5
    assert write_plots(tmp_path, Results(started="now", machine={}, settings={})) == []


def test_a_part_that_fails_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no luck")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tests.bench.report.command.measure_floor", fail)
    monkeypatch.setattr("tests.bench.report.command.measure_neighbors", interrupt)
    with pytest.raises(SystemExit) as ended:
        run_report(tmp_path, quick=True, max_edges=1_000_000, without=["stages", "metrics"])
    assert ended.value.code == 130
    parts = json.loads((tmp_path / "report.json").read_text())["parts"]
    assert [part["name"] for part in parts] == list(PARTS)
    reasons = ["failed: ValueError: no luck", *["left out by --without"] * 2, "interrupted"]
    assert [part["reason"] for part in parts[:5]] == [*reasons, "interrupted before"]
    assert "**Interrupted**" in (tmp_path / "report.md").read_text()


def test_the_peer_answers_as_hopserve_does(tmp_path: Path) -> None:
    service = pytest.importorskip(
        "tests.bench.report.fastapi_service", reason="FastAPI is in the extra `bench`"
    )
    snapshot: Snapshot = make_graph(tmp_path / "graph", 10_000)
    ours = Answering(snapshot, exported(Sage().eval(), PLAN))
    theirs = service.Answers.of(snapshot, Sage(), LAYER_FANOUTS[0])
    with torch.inference_mode():
        for node in range(0, snapshot.num_nodes, 100):
            assert close(theirs.sampled(node), ours.embedding({"node_id": node}))
            whole = np.array(theirs.whole(node))
            assert whole.shape == (64,)
            assert np.isfinite(whole).all()
