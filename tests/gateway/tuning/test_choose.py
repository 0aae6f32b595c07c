"""What is proposed follows from what was measured, and from nothing else."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from archive.pack import PackPlan, pack
from gateway.errors import UpstreamError
from gateway.tuning.archives import read_original, write_candidate
from gateway.tuning.candidates import Candidate, Grid
from gateway.tuning.choose import best_of, pareto_front, propose
from gateway.tuning.load import Answered
from gateway.tuning.measured import Latency, Measured, latency_of, summarize
from gateway.tuning.search import Budget, Findings, Search
from tests.conftest import Example

_PRESENT = Candidate(64, 1, 1, 2, 0)
_OTHER = replace(_PRESENT, batch_size=8)


def _measured(candidate: Candidate, max_per_s: float, p99_ms: float) -> Measured:
    return Measured(candidate, max_per_s, (Latency(None, p99_ms / 3, p99_ms / 2, p99_ms),), 0.3, 0)


def test_of_those_that_keep_the_target_the_one_with_the_most_throughput_is_best() -> None:
    quick, much = _measured(_PRESENT, 100, 5), _measured(_OTHER, 200, 30)
    assert best_of([quick, much], None) is much
    assert best_of([quick, much], 20) is quick
    assert best_of([quick, much], 1) is quick, "where nobody keeps it, the lowest p99"
    assert best_of([quick, replace(quick, candidate=_OTHER)], None) is quick, "of equal ones the first"


@pytest.mark.parametrize(
    ("found", "is_change"),
    [((200.0, 202.0), True), ((101.0, 103.0), False), ((90.0, 300.0), False)],
)
def test_a_gain_must_be_larger_than_what_turns_differ_by(found: tuple[float, ...], is_change: bool) -> None:
    present = summarize([_measured(_PRESENT, value, 5) for value in (100, 104)])
    other = summarize([_measured(_OTHER, value, 5) for value in found])
    proposal = propose(present, [other], 20)
    assert proposal.is_change is is_change
    assert proposal.candidate == (_OTHER if is_change else _PRESENT)
    assert proposal.keeps_target


def test_one_turn_shows_nothing() -> None:
    once = [summarize([_measured(candidate, rate, 5)]) for candidate, rate in ((_PRESENT, 1), (_OTHER, 9))]
    assert not propose(once[0], once[1:], None).is_change


def test_the_front_has_those_that_nobody_beats_in_both() -> None:
    slow, beaten, fast = (_measured(_PRESENT, *both) for both in ((100, 5), (150, 50), (200, 30)))
    assert pareto_front([beaten, fast, slow]) == [slow, fast]


def test_requests_that_failed_took_for_ever() -> None:
    answers = [Answered({}, status, b"", 0.01) for status in (200, 404, 200, 503)]
    latency = latency_of(answers, 10)
    assert (latency.p50_ms, latency.p99_ms) == (10.0, math.inf)
    assert latency_of([], 10).p50_ms == math.inf


def test_the_search_follows_one_axis_after_the_other_and_repeats_the_best() -> None:
    asked: list[Candidate] = []

    def measure(candidate: Candidate) -> Measured:
        asked.append(candidate)
        if candidate.num_threads == 2:
            raise UpstreamError("no such threads")
        return _measured(candidate, candidate.batch_size * candidate.num_workers, 5)

    findings = Findings(replace(_PRESENT, batch_size=1), None)
    Search(Grid((1, 8), (1, 2), (1, 2), (0, 2)), measure, Budget(60), 2).run(findings)
    proposal = findings.proposal()
    assert proposal is not None
    assert (proposal.candidate.batch_size, proposal.candidate.num_workers) == (8, 2)
    assert [each.num_threads for each in findings.failed] == [2]
    assert all(len(turns) == 2 for turns in findings.turns.values())
    assert len(findings.turns) == 3
    assert asked[0].batch_size == 1
    assert not findings.was_cut


def test_a_budget_ends_the_search_with_what_is_known() -> None:
    clock = iter(range(1_000))
    findings = Findings(_PRESENT, None)
    budget = Budget(4, lambda: float(next(clock)))
    Search(Grid(), lambda candidate: _measured(candidate, 1, 5), budget, 2).run(findings)
    assert findings.was_cut
    assert findings.first
    proposal = findings.proposal()
    assert proposal is not None
    assert proposal.candidate == _PRESENT


@pytest.fixture
def archive(example: Example, tmp_path: Path) -> Path:
    plan = PackPlan(name="graphsage", version="1.0", model_folder=example.export, graph_folder=example.graph)
    return pack(plan, tmp_path)


def test_only_what_is_chosen_changes_in_a_copy(archive: Path, tmp_path: Path) -> None:
    original, copy = read_original(archive), tmp_path / "copy.mar"
    assert original.present == _PRESENT
    write_candidate(original, Candidate(8, 5, 2, 2, 1), copy, tmp_path / "answers")
    with zipfile.ZipFile(archive) as before, zipfile.ZipFile(copy) as after:
        assert before.namelist() == after.namelist()
        changed = [name for name in before.namelist() if before.read(name) != after.read(name)]
        old, new = (yaml.safe_load(each.read("model-config.yaml")) for each in (before, after))
    assert changed == ["model-config.yaml"]
    wanted = {"batchSize": 8, "maxBatchDelay": 5, "minWorkers": 2, "maxWorkers": 2}
    handler = {**old["handler"], "num_threads": 1, "embeddings": str(tmp_path / "answers")}
    assert new == {**old, **wanted, "handler": handler}


@pytest.mark.parametrize("break_", [lambda path: path.write_bytes(b"no zip"), lambda path: path.unlink()])
def test_what_is_no_archive_is_refused(archive: Path, break_: Callable[[Path], object]) -> None:
    break_(archive)
    with pytest.raises(UpstreamError, match="graphsage-1.0.mar"):
        read_original(archive)
