"""A run as JSON for programs, and as Markdown for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from tests.bench.report.ratios import Spread, numbers, over_rounds, ratios, verdicts
from tests.bench.report.results import Results, Turn

_CLOSED = (
    "Requests over connections that are kept open, each sent when the answer to the one before is there."
    " Medians of the rounds. `asker` is how many cores the load generator took of those that all share."
)
_OPENED = (
    "Requests at random times, whose number depends on no answer. Times count from when each was due, so that"
    " a server that stands still makes all of that time late. Shares are of the throughput over 64"
    " connections."
)


def to_json(results: Results) -> bytes:
    """Everything: settings, measurements, `ratios` by name, lowest and highest in `spread`."""
    found, others = ratios(results), numbers(results)
    content: dict[str, Any] = msgspec.to_builtins(results)
    content |= {
        "ratios": {name: spread.value for name, spread in found.items()},
        "spread": {name: [spread.lowest, spread.highest] for name, spread in found.items()},
        "numbers": {name: spread.value for name, spread in others.items()},
        "numbers_spread": {name: [spread.lowest, spread.highest] for name, spread in others.items()},
        "targets": {
            target.name: {
                "at_most" if target.at_most else "at_least": target.value,
                "met": None if spread is None else target.is_met(spread.value),
            }
            for target, spread in verdicts(found | others)
        },
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2)


def to_markdown(results: Results, plots: Sequence[str] = ()) -> str:
    """What a newcomer can read.

    Args:
        plots: file names of the pictures beside it.
    """
    return "\n".join(_lines(results, plots))


def _lines(results: Results, plots: Sequence[str]) -> Iterator[str]:
    machine, settings = results.machine, results.settings
    yield f"# Hopserve, measured {results.started}\n"
    if results.interrupted:
        yield "**Interrupted**: this is what there was by then.\n"
    if settings.get("quick"):
        yield "A quick run: a small graph and short turns. It shows that all works; its numbers say little.\n"
    yield (
        f"On {machine.get('cores')} cores ({machine.get('cpu')}), {machine.get('memory_gb')} GB of memory,"
        " shared by servers, workers and the load generator. What is compared takes turns in this one run, so"
        " ratios say more than times do. Each is the median of its rounds, with the lowest and highest.\n"
    )
    yield "## Targets\n"
    yield from _targets(results)
    yield "## Other ratios and numbers\n"
    known = {target.name for target, _ in verdicts({})}
    rest = {name: each for name, each in (ratios(results) | numbers(results)).items() if name not in known}
    rows = [[f"`{name}`", f"{s.value:.2f}", f"{s.lowest:.2f} to {s.highest:.2f}"] for name, s in rest.items()]
    yield from _table(("name", "median", "lowest to highest"), rows)
    yield from _in_process(results)
    yield from _closed(results)
    yield from _opened(results)
    yield from _parts(results)
    yield from (f"![{name}]({name})\n" for name in plots)
    yield "## Machine and settings\n"
    yield from _table(("what", "value"), [[key, value] for key, value in (machine | settings).items()])


def _targets(results: Results) -> Iterator[str]:
    rows = []
    for target, spread in verdicts(ratios(results) | numbers(results)):
        wanted = f"{'<=' if target.at_most else '>='} {target.value:g}"
        rows.append(
            [target.words, f"`{target.name}`", *_measured(spread), wanted, _met(target.is_met, spread)]
        )
    yield from _table(("what", "name", "measured", "lowest to highest", "target", "met"), rows)


def _measured(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["not measured", "-"]
    return [f"{spread.value:,.2f}", f"{spread.lowest:,.2f} to {spread.highest:,.2f}"]


def _met(is_met: Any, spread: Spread | None) -> str:
    return "-" if spread is None else "yes" if is_met(spread.value) else "NO"


def _in_process(results: Results) -> Iterator[str]:
    yield "## In one process, on one thread\n"
    rows: list[list[object]] = [
        [each.batch, f"{each.gflops:.0f}", f"{each.gather_gb_per_s:.1f}", f"{each.reads_m_per_s:.0f}"]
        for each in results.floor
    ]
    yield "What the machine can do at least: multiply, copy rows of features, read neighbors.\n"
    yield from _table(("batch", "GFLOP/s", "GB/s of rows", "million neighbors/s"), rows)
    yield "Microseconds per node; the floor is the same arithmetic and reads with nothing around them.\n"
    stages = list(results.stages[0].stages_us) if results.stages else []
    rows = []
    for size in sorted({each.batch for each in results.stages}):
        found = [each for each in results.stages if each.batch == size]
        middle = [_middle([each.stages_us[name] for each in found]) for name in stages]
        total, floor = (_middle([getattr(e, k) for e in found]) for k in ("total_us", "floor_total_us"))
        pyg = _middle([sum(each.pyg_us.values()) for each in found])
        rows.append([size, *middle, total, floor, pyg])
    yield from _table(("batch", *stages, "sum", "floor", "PyG's way with our loader"), rows)
    if results.counting:
        yield "Microseconds per node of whole answers, with all metrics and with none.\n"
        rows = []
        for size in sorted({each.batch for each in results.counting}):
            both = [each for each in results.counting if each.batch == size]
            times = (_middle([getattr(e, key) for e in both]) for key in ("counted_us", "uncounted_us"))
            rows.append([size, *times])
        yield from _table(("batch", "with", "without"), rows)
    if results.neighbors:
        rows = []
        for size in sorted({each.batch for each in results.neighbors}):
            pair = [each for each in results.neighbors if each.batch == size]
            rows.append([size, _middle([e.loader_us for e in pair]), _middle([e.ours_us for e in pair])])
        yield from _table(("batch", "PyG's NeighborLoader and model", "ours"), rows)
    rows = []
    for count in sorted({each.num_edges for each in results.growth}):
        grown = [each for each in results.growth if each.num_edges == count]
        times = (_middle([getattr(each, key) for each in grown]) for key in ("p50_us", "p99_us"))
        rows.append([f"{count:,}", f"{grown[0].num_nodes:,}", *times])
    yield "A live answer about one node, with its JSON, by the size of the graph.\n"
    yield from _table(("edges", "nodes", "p50 us", "p99 us"), rows)


def _closed(results: Results) -> Iterator[str]:
    yield "## Over HTTP, in a closed loop\n"
    yield _CLOSED + "\n"
    rows: list[list[object]] = []
    for part in dict.fromkeys(turn.part for turn in results.turns):
        for name, connections, share in results.kinds(part):
            if share is None:
                turns = list(results.closed(part, name, connections).values())
                rows.append([part, name, connections, *_cells(turns)])
    yield from _table(("part", "who", "connections", *_CELLS), rows)


def _opened(results: Results) -> Iterator[str]:
    yield "## Over HTTP, in an open loop\n"
    yield _OPENED + "\n"
    rows: list[list[object]] = []
    for name, _, share in results.kinds("served"):
        if share is not None:
            turns = results.opened("served", name, share)
            sent = over_rounds(turns, lambda turn: turn.rate or 0)
            rows.append([name, f"{share:.0%}", f"{sent:,.0f}", *_cells(turns)])
    yield from _table(("who", "share", "sent/s", *_CELLS), rows)


_CELLS = ("answered/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "failed", "asker")


def _cells(turns: Sequence[Turn]) -> list[str]:
    times = (over_rounds(turns, lambda t, key=key: getattr(t, key)) for key in _TIMES)  # type: ignore[misc]
    return [
        f"{over_rounds(turns, lambda turn: turn.per_s):,.0f}",
        *(f"{value:.2f}" for value in times),
        str(sum(turn.failed for turn in turns)),
        f"{over_rounds(turns, lambda turn: turn.asker_cores):.2f}",
    ]


_TIMES = ("p50_ms", "p90_ms", "p99_ms", "p999_ms")


def _parts(results: Results) -> Iterator[str]:
    yield "## Parts\n"
    rows = [
        [part.name, f"{part.seconds:.0f}", part.reason or "whole", " ".join(part.notes)]
        for part in results.parts
    ]
    yield from _table(("part", "seconds", "what became of it", "notes"), rows)


def _middle(values: Sequence[float]) -> str:
    return f"{np.median(values):.1f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    if not rows:
        yield "Not measured.\n"
        return
    for cells in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"
    yield ""
