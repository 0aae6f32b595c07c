"""`scripts/bench` itself: all parts one after the other, and the report of what there is."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tests.bench.report.in_process import (
    LeftOut,
    measure_floor,
    measure_growth,
    measure_metrics,
    measure_neighbors,
    measure_stages,
)
from tests.bench.report.machine import describe_machine
from tests.bench.report.plots import write_plots
from tests.bench.report.render import to_json, to_markdown
from tests.bench.report.results import Part, Results
from tests.bench.report.scale import FULL, QUICK
from tests.bench.report.served import (
    measure_batches,
    measure_fastapi,
    measure_ingest,
    measure_served,
    measure_workers,
)
from tests.bench.report.workshop import Workshop

Measure = Callable[[Workshop, Results, Part], None]
PARTS = (
    "floor",
    "stages",
    "metrics",
    "neighborloader",
    "served",
    "fastapi",
    "ingest",
    "workers",
    "batches",
    "growth",
)


def run_report(
    out: Path | None,
    *,
    quick: bool,
    max_edges: int,
    rounds: int | None = None,
    seconds: float | None = None,
    without: Collection[str] = (),
    work: Path | None = None,
) -> None:
    """Measure all parts, and write the report, also of what there is when it is interrupted.

    Args:
        out: folder of the report; one named by the time without it.
        rounds, seconds: other than those of the scale.
        without: parts that are left out.
        work: where graphs are built.
    """
    scale = QUICK if quick else FULL
    scale = replace(scale, rounds=rounds or scale.rounds, seconds=seconds or scale.seconds)
    now = datetime.now(UTC)
    folder = out or Path("var", "bench", f"{now:%Y%m%dT%H%M%SZ}")
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "quick": quick,
        "max_edges": max_edges,
        "model": "GraphSAGE 128 -> 256 -> 64",
        **asdict(scale),
    }
    results = Results(
        started=now.isoformat(timespec="seconds"), machine=describe_machine(), settings=settings
    )
    measures = dict(zip(PARTS, _measures(max_edges), strict=True))
    try:
        if work is not None:
            work.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=work) as temporary, Workshop(Path(temporary), scale) as workshop:
            for number, (name, measure) in enumerate(measures.items(), start=1):
                _run_part(workshop, results, name, measure, without, f"{number}/{len(measures)}")
    except KeyboardInterrupt:
        results.interrupted = True
    done = {part.name for part in results.parts}
    results.parts += [Part(name=name, reason="interrupted before") for name in PARTS if name not in done]
    _write(folder, results)
    if results.interrupted:
        raise SystemExit(130)


def _measures(max_edges: int) -> tuple[Measure, ...]:
    return (
        measure_floor,
        measure_stages,
        measure_metrics,
        measure_neighbors,
        measure_served,
        measure_fastapi,  # before changes, which NetworkX does not hear of
        measure_ingest,
        measure_workers,
        measure_batches,
        partial(measure_growth, max_edges=max_edges),
    )


def _run_part(
    workshop: Workshop, results: Results, name: str, measure: Measure, without: Collection[str], place: str
) -> None:
    """Run one part; what it has measured stays, whatever becomes of it."""
    part = Part(name=name)
    results.parts.append(part)
    if name in without:
        part.reason = "left out by --without"
        return
    click.echo(f"bench: {place} {name}", err=True)
    started = time.monotonic()
    try:
        measure(workshop, results, part)
    except LeftOut as error:
        part.reason = f"left out: {error}"
    except KeyboardInterrupt:
        part.reason = "interrupted"
        raise
    except Exception as error:  # noqa: BLE001 - the other parts do not depend on it
        part.reason = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:500]}"
    finally:
        part.seconds = time.monotonic() - started
        if part.reason:
            click.echo(f"bench: {name}: {part.reason}", err=True)


def _write(folder: Path, results: Results) -> None:
    (folder / "report.json").write_bytes(to_json(results))
    plots = write_plots(folder, results)
    (folder / "report.md").write_text(to_markdown(results, plots))
    click.echo(f"bench: the report is {folder / 'report.md'}", err=True)
