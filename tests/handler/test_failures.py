"""One bad row never harms another, whatever fails; and a forward stays within its memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from handler import metrics
from handler.errors import ModelError, OutOfMemory
from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeArrays
from handler.graph.features import DenseFeatures
from handler.graph.snapshot import Snapshot
from handler.graph.writer import write_snapshot
from handler.model.exported import ExportedModel, ModelInput
from handler.model.memory import peak_bytes
from handler.model.output import ModelOutput
from tests.models import random_model
from tests.served import CPU, RING, Answering, Served, close

ALL = list(range(6))


class Faulty:
    """A model to which something is done before or after its forward."""

    def __init__(
        self,
        served: Served,
        before: Callable[[ModelInput], None] = lambda given: None,
        after: Callable[[ModelOutput], ModelOutput] = lambda output: output,
    ) -> None:
        self.signature, self.device = served.exported.signature, CPU
        self._served, self._before, self._after = served, before, after

    def run(self, given: ModelInput) -> ModelOutput:
        self._before(given)
        return self._after(self._served.exported.run(given))

    def score(self, source: NDArray[np.float32], target: NDArray[np.float32]) -> NDArray[np.float32]:
        raise RuntimeError("no scores")


@pytest.fixture(scope="module")
def ring() -> Served:
    return Served(RING.to_snapshot(), *random_model((3, 2)))


def _fails_with(nodes: set[int], error: type[Exception] = RuntimeError) -> Callable[[ModelInput], None]:
    """Fail whenever the seeds of a forward are among these nodes, by their features."""
    bad = RING.features()[sorted(nodes)]

    def check(given: ModelInput) -> None:
        seeds = given.tensors[0][: given.num_seeds].numpy()
        if (seeds[:, None] == bad[None]).all(axis=2).any():
            raise error("boom")

    return check


def _codes(answer: Any) -> list[str | None]:
    return [row.get("error", {}).get("code") for row in answer["predictions"]]


@given(st.sets(st.sampled_from(ALL)), st.lists(st.sampled_from(ALL), min_size=1, max_size=20))
def test_only_the_rows_that_fail_err(bad: set[int], asked: list[int]) -> None:
    ring = Served(RING.to_snapshot(), *random_model((3, 2)))
    faulty = Answering(ring.snapshot, Faulty(ring, _fails_with(bad) if bad else lambda given: None))
    ((status, answer),) = faulty.ask({"node_ids": asked})
    assert status == 200
    assert _codes(answer) == ["internal" if node in bad else None for node in asked]
    for node, row in zip(asked, answer["predictions"], strict=True):
        if node not in bad:
            assert close(row["embedding"], ring.embedding({"node_id": node}))
    failed = faulty.counters.drain().get((metrics.FAILED_FORWARDS, ()), 0)
    assert (failed > 0) == bool(bad & set(asked))


def test_one_failing_row_costs_few_forwards_more(ring: Served) -> None:
    faulty = Answering(ring.snapshot, Faulty(ring, _fails_with({3})))
    faulty.ask(*({"node_id": node} for node in ALL))
    assert faulty.counters.drain()[metrics.FORWARDS, ()] <= 1 + 2 * 3  # each time in halves


def test_requests_that_fail_harm_no_other(ring: Served) -> None:
    faulty = Answering(ring.snapshot, Faulty(ring, _fails_with({3})))
    (failed, good, unknown) = faulty.ask({"node_id": 3}, {"node_id": 1}, {"node_id": 77})
    assert (failed[0], failed[1]["error"]["code"]) == (500, "internal")
    assert "boom" not in failed[1]["error"]["message"]
    assert close(good[1]["embedding"], ring.embedding({"node_id": 1}))
    assert unknown[0] == 404


def test_an_output_that_is_not_finite_is_an_error_of_its_row(ring: Served) -> None:
    def spoil(output: ModelOutput) -> ModelOutput:
        embedding = output.embedding.copy()
        embedding[0, 2] = np.nan
        return dataclasses.replace(output, embedding=embedding)

    bad, good = Answering(ring.snapshot, Faulty(ring, after=spoil)).ask({"node_id": 3}, {"node_id": 1})
    assert (bad[0], bad[1]["error"]["code"]) == (500, "non_finite_output")
    assert "node 3 is not finite" in bad[1]["error"]["message"]
    assert good[0] == 200


def _has_memory_for(num_nodes: int) -> Callable[[ModelInput], None]:
    def check(given: ModelInput) -> None:
        if len(given.tensors[0]) > num_nodes:
            raise OutOfMemory("no more")

    return check


def test_a_forward_without_memory_is_halved_and_the_budget_remembered(ring: Served) -> None:
    # The trees have 3, 7, 5, 3, 3 and 3 nodes.
    small = Answering(ring.snapshot, Faulty(ring, _has_memory_for(7)))
    ((_, answer),) = small.ask({"node_ids": ALL})
    assert _codes(answer) == [None] * 6
    for node, row in enumerate(answer["predictions"]):
        assert close(row["embedding"], ring.embedding({"node_id": node}))
        assert not row["sampled"]["truncated"]
    counted = small.counters.drain()
    assert counted[metrics.OUT_OF_MEMORY, ()] >= 1
    assert (metrics.FAILED_FORWARDS, ()) not in counted
    small.ask({"node_ids": ALL})
    assert (metrics.OUT_OF_MEMORY, ()) not in small.counters.drain()


def test_a_single_node_without_memory_is_an_error_of_its_row(ring: Served) -> None:
    small = Answering(ring.snapshot, Faulty(ring, _has_memory_for(5)))
    (large, other) = small.ask({"node_id": 1}, {"node_id": 0})
    assert (large[0], large[1]["error"]["code"]) == (503, "out_of_memory")
    assert other[0] == 200


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("Failed to allocate memory for requested buffer of size 1"),
    ],
)
def test_whoever_refuses_memory_is_understood(error: Exception) -> None:
    from handler.model.memory import translated

    with pytest.raises(OutOfMemory), translated():
        raise error


def test_memory_that_is_really_refused_is_understood(ring: Served) -> None:
    from handler.model.memory import translated

    with pytest.raises(OutOfMemory), translated():
        torch.empty(2**55)


@pytest.mark.parametrize("num_nodes", [5000, 100, 7])
def test_a_worker_with_little_memory_gets_ready_and_answers(ring: Served, num_nodes: int) -> None:
    small = Answering(ring.snapshot, Faulty(ring, _has_memory_for(num_nodes)))
    small.service.warm_up(4)
    ((_, answer),) = small.ask({"node_ids": ALL})
    assert _codes(answer) == [None] * 6


def test_a_worker_without_memory_is_not_ready(ring: Served) -> None:
    none = Answering(ring.snapshot, Faulty(ring, _has_memory_for(0)))
    with pytest.raises(ModelError, match="the model fails on this graph: no more"):
        none.service.warm_up(4)


def test_a_model_that_fails_on_the_graph_is_not_ready(ring: Served) -> None:
    broken = Answering(ring.snapshot, Faulty(ring, _fails_with({0})))
    with pytest.raises(ModelError, match="the model fails on this graph: boom"):
        broken.service.warm_up(4)


def test_equal_nodes_of_a_batch_are_computed_once(ring: Served) -> None:
    seen: list[int] = []
    served = Answering(ring.snapshot, Faulty(ring, lambda given: seen.append(given.num_seeds)))
    answers = served.ask(
        {"node_id": 1}, {"node_ids": [2, 1, 2]}, {"node_id": 1, "num_hops": 1}, {"node_id": 1}
    )
    assert seen == [2, 1]  # one forward for each way to sample
    assert answers[0] == answers[3]
    rows = answers[1][1]["predictions"]
    assert [row["node_id"] for row in rows] == [2, 1, 2]
    assert rows[0] == rows[2]
    assert rows[1] == answers[0][1]
    assert answers[2][1]["sampled"] == {"nodes": 4, "edges": 3, "truncated": False}
    counted = served.counters.drain()
    assert counted[metrics.NODES, ("live",)] == 6
    assert counted[metrics.EDGES.sum, ()] == sum(
        row["sampled"]["edges"] for row in (*rows, answers[0][1], answers[2][1], answers[3][1])
    )


def _hubs(num_nodes: int = 4000, feature_dim: int = 64) -> GraphArrays:
    generator = np.random.default_rng(0)
    edges = EdgeArrays(generator.integers(0, num_nodes, (2, 60_000)))
    x = generator.standard_normal((num_nodes, feature_dim)).astype(np.float32)
    return GraphArrays("hubs", edges, num_nodes, features=DenseFeatures(x))


def _hub_model(hidden_dim: int) -> ExportedModel:
    from archive.checkpoint import ModelConfig
    from tests.served import exported

    config = ModelConfig(
        task="embedding",
        feature_dim=64,
        hidden_dim=hidden_dim,
        embedding_dim=16,
        layer_fanouts=(10, 10),
        labels=(),
    )
    return exported(config.build().eval(), config.export_plan())


def test_what_cannot_be_seen_of_each_peak_makes_no_forward_too_large(
    make_snapshot: Callable[..., Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    node_bytes, budget = 1_000, 8_000_000
    model, sizes = _hub_model(8), [0]

    class Watched:
        signature, device, score = model.signature, CPU, model.score

        def run(self, given: ModelInput) -> ModelOutput:
            sizes.append(len(given.tensors[0]))
            return model.run(given)

    def seen_in_part(_: torch.device, work: Callable[[], object]) -> int:
        work()
        return max(0, sizes[-1] * node_bytes - 7_000_000)

    monkeypatch.setattr("handler.forwards.peak_bytes", seen_in_part)
    served = Answering(make_snapshot(_hubs()), Watched(), max_bytes_per_forward=budget)
    served.service.warm_up(64)
    sizes.clear()
    served.ask({"node_ids": list(range(2_000))})
    assert budget / node_bytes / 2 < max(sizes) <= budget / node_bytes


def test_a_huge_batch_stays_within_its_memory_and_is_right(tmp_path: Path) -> None:
    """In a process of its own, as a worker is: this one holds what other tests have left."""
    write_snapshot(tmp_path / "graph", _hubs())
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        processes.submit(_answer_a_huge_batch, tmp_path / "graph").result()


def _answer_a_huge_batch(graph: Path) -> None:
    """256 requests, of which one has 2,000 nodes and one is unknown."""
    snapshot, model = Snapshot.open(graph), _hub_model(1024)
    budget = 8_000_000
    peaks: list[int] = []

    class Watched:
        signature, device, score = model.signature, CPU, model.score
        #: Not while the service itself measures, whose peak this would begin anew.
        is_watching = False

        def run(self, given: ModelInput) -> ModelOutput:
            if not self.is_watching:
                return model.run(given)
            outputs: list[ModelOutput] = []
            # The smallest of some: pages that the system had taken away come back in one of them.
            peaks.append(min(peak_bytes(CPU, lambda: outputs.append(model.run(given))) for _ in range(5)))
            return outputs[0]

    watched = Watched()
    served = Answering(snapshot, watched, max_bytes_per_forward=budget)
    served.service.warm_up(64)
    watched.is_watching = True
    requests: list[dict[str, Any]] = [{"node_id": node} for node in range(254)]
    requests.insert(100, {"node_ids": list(range(2000))})
    requests.insert(200, {"node_id": "nobody"})
    answers = served.ask(*requests)
    assert len(peaks) > 5
    assert max(peaks) <= budget
    unbounded = Answering(snapshot, model)
    for request, (status, answer) in zip(requests, answers, strict=True):
        if request == {"node_id": "nobody"}:
            assert status == 400
            continue
        assert status == 200
        rows = answer.get("predictions", [answer])
        for row in rows[:: max(1, len(rows) // 50)]:
            assert close(row["embedding"], unbounded.embedding({"node_id": row["node_id"]}))
