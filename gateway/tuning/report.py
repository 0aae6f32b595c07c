"""Says what was found: as a table, in sentences, and as JSON."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.tuning.archives import Original
from gateway.tuning.candidates import Candidate
from gateway.tuning.choose import Proposal, keeps, pareto_front
from gateway.tuning.measure import Trial
from gateway.tuning.measured import Latency, Summary
from gateway.tuning.search import Findings

_FEW_REQUESTS = 100


@dataclass(frozen=True)
class Table:
    """A table of words.

    Args:
        rows: as long as `head`.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        """As Markdown has it, with columns that are aligned for reading."""
        lines = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        written = [
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
            for line in lines
        ]
        rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
        return "\n".join([written[0], rule, *written[1:]])


def table_of(findings: Findings) -> Table:
    """A row for each candidate, as they were tried."""
    proposal, summaries = findings.proposal(), findings.summaries()
    latencies = summaries[0].typical.latencies if summaries else ()
    head = ["settings", "max req/s", *(f"p50 / p95 / p99 ms {_at(each.rate)}" for each in latencies)]
    head += ["load's CPU", "turns", ""]
    return Table(head, [_row(summary, findings, proposal) for summary in summaries])


def sentences(findings: Findings, original: Original, trial: Trial) -> list[str]:
    """What is proposed, why, and what else there would be."""
    proposal = findings.proposal()
    if proposal is None:
        return ["nothing was measured"]
    lines = []
    name = original.stored.file_name
    if proposal.is_change:
        lines.append(f"Proposed for {name}: hopserve pack ... {proposal.candidate.pack_options()}")
        lines.append(f"Why: {proposal.why}.")
    else:
        lines.append(f"Keep what {name} has: {proposal.candidate}")
        lines.append(f"Why: {proposal.why}.")
    if not proposal.keeps_target:
        lines.append(
            f"No settings are shown to keep the p99 within {findings.target_ms:g} ms: the lowest was taken."
        )
    lines += _trade_offs(findings, proposal)
    lines += [f"Not measured: {candidate}: {reason}" for candidate, reason in findings.failed.items()]
    lines += _cautions(findings, trial)
    return lines


def as_json(findings: Findings, original: Original, trial: Trial) -> dict[str, Any]:
    """All that is known; what is infinite is null."""
    proposal = findings.proposal()
    front = {each.candidate for each in pareto_front([summary.typical for summary in findings.summaries()])}
    return {
        "archive": original.stored.file_name,
        "model": original.stored.model,
        "version": original.stored.version,
        "cores": len(os.sched_getaffinity(0)),
        "traffic": {
            "requests": trial.traffic.source,
            "live": trial.traffic.live,
            "rates": ["max" if rate is None else rate for rate in trial.rates],
            "connections": trial.connections,
            "seconds": trial.seconds,
        },
        "p99_target_ms": findings.target_ms,
        "was_cut": findings.was_cut,
        "candidates": [
            _summary_json(each, findings) | {"on_pareto_front": each.candidate in front}
            for each in findings.summaries()
        ],
        "failed": [
            {"settings": settings_json(candidate), "reason": reason}
            for candidate, reason in findings.failed.items()
        ],
        "proposal": proposal
        and {
            "settings": settings_json(proposal.candidate),
            "is_change": proposal.is_change,
            "keeps_target": proposal.keeps_target,
            "why": proposal.why,
            "pack_options": proposal.candidate.pack_options(),
        },
    }


def settings_json(candidate: Candidate) -> dict[str, int]:
    """Settings by the names that archives have for them."""
    return {
        "batchSize": candidate.batch_size,
        "maxBatchDelay": candidate.max_batch_delay_ms,
        "minWorkers": candidate.num_workers,
        "maxWorkers": candidate.max_workers,
        "num_threads": candidate.num_threads,
    }


def milliseconds(value: float) -> str:
    """A time in words of a table; there is none where no end was to be seen."""
    if math.isinf(value):
        return "-"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _row(summary: Summary, findings: Findings, proposal: Proposal | None) -> list[str]:
    typical = summary.typical
    marks = ["present"] * (summary.candidate == findings.present)
    marks += ["proposed"] * (proposal is not None and summary.candidate == proposal.candidate)
    marks += ["misses the target"] * (not keeps(typical, findings.target_ms))
    marks += [f"{typical.num_failed} failed"] * bool(typical.num_failed)
    return [
        str(summary.candidate),
        f"{typical.max_per_s:,.0f}",
        *(_latency(each) for each in typical.latencies),
        f"{typical.load_share:.0%}",
        str(summary.num_turns),
        ", ".join(marks),
    ]


def _latency(latency: Latency) -> str:
    return " / ".join(map(milliseconds, (latency.p50_ms, latency.p95_ms, latency.p99_ms)))


def _at(rate: float | None) -> str:
    return "at the most" if rate is None else f"at {rate:g}/s"


def _trade_offs(findings: Findings, proposal: Proposal) -> list[str]:
    """What the most throughput, and the lowest p99, would cost of the other."""
    summaries = {summary.candidate: summary.typical for summary in findings.summaries()}
    chosen = summaries[proposal.candidate]
    front = pareto_front(list(summaries.values()))
    lines = []
    for words, other in (("More throughput", front[-1]), ("Lower latency", front[0])):
        gains = other.max_per_s > chosen.max_per_s if other is front[-1] else other.p99_ms < chosen.p99_ms
        if other.candidate != chosen.candidate and gains:
            lines.append(
                f"{words}: {other.candidate}: {other.max_per_s:,.0f} instead of {chosen.max_per_s:,.0f}"
                f" req/s, p99 {milliseconds(other.p99_ms)} instead of {milliseconds(chosen.p99_ms)} ms."
            )
    return list(dict.fromkeys(lines))


def _cautions(findings: Findings, trial: Trial) -> list[str]:
    lines = []
    if findings.was_cut:
        lines.append("The budget did not suffice for all: give more with --budget, or fewer values.")
    lines += [
        f"At {rate:g}/s for {trial.seconds:g} s there are so few requests that the p99 is hardly more than"
        " the slowest one: give more with --seconds."
        for rate in trial.rates
        if rate is not None and rate * trial.seconds < _FEW_REQUESTS
    ]
    lines.append(
        "The load came from the same machine and took the share of its processors that the table shows."
    )
    return lines


def _summary_json(summary: Summary, findings: Findings) -> dict[str, Any]:
    typical = summary.typical
    return {
        "settings": settings_json(summary.candidate),
        "is_present": summary.candidate == findings.present,
        "turns": summary.num_turns,
        "max_per_s": typical.max_per_s,
        "max_per_s_spread": summary.max_per_s_spread,
        "p99_spread_ms": _finite(summary.p99_spread_ms),
        "latencies": [
            {
                "rate": "max" if each.rate is None else each.rate,
                "p50_ms": _finite(each.p50_ms),
                "p95_ms": _finite(each.p95_ms),
                "p99_ms": _finite(each.p99_ms),
            }
            for each in typical.latencies
        ],
        "keeps_target": keeps(typical, findings.target_ms),
        "load_cpu_share": typical.load_share,
        "failed_requests": typical.num_failed,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
