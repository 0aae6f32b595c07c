"""`hopserve tune`: which batch size, delay, workers and threads suit a packed model on this machine."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from archive.picture_files import PageTable, check_picture_path
from archive.tuning_pictures import TradeOff, draw_trade_offs
from gateway.errors import UpstreamError
from gateway.tuning.archives import Original, read_original
from gateway.tuning.candidates import Candidate, Grid
from gateway.tuning.choose import pareto_front
from gateway.tuning.measure import Bench, Trial
from gateway.tuning.measured import Measured
from gateway.tuning.report import as_json, milliseconds, sentences, table_of
from gateway.tuning.search import Budget, Findings, Search
from gateway.tuning.server import own_server
from gateway.tuning.traffic import Traffic, random_traffic, read_traffic
from gateway.upstream.properties import ServerProperties
from handler.graph.snapshot import Snapshot
from scripts.cli.options import ANY_PATH, EXISTING_FILE, Age, Bars, say, with_server

_GRID = Grid()
_TRIAL = Trial(Traffic((), live=True, source=""))
_POSITIVE = click.IntRange(min=1)


class Rate(click.ParamType[float | str]):
    """Requests a second, or as many as are answered."""

    name = "N|max"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        if value == "max":
            return "max"
        try:
            rate = float(str(value))
        except ValueError:
            rate = 0.0
        if not 0 < rate < float("inf"):
            self.fail(f"{value!r} is no number of requests per second, and not `max`", param, ctx)
        return rate


class Numbers(click.ParamType[tuple[int, ...]]):
    """Comma-separated numbers from 1 on, each once."""

    name = "N,N,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(part.strip().isdecimal() and int(part) >= 1 for part in parts):
            self.fail(f"{value!r} is not a list of numbers from 1 on, such as 1,2", param, ctx)
        return tuple(dict.fromkeys(int(part) for part in parts))


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


@click.command("tune")
@click.argument("archive", type=EXISTING_FILE)
@click.option(
    "--rate",
    "rates",
    type=Rate(),
    multiple=True,
    default=("max",),
    show_default=True,
    help="Requests per second that are expected, at which latency is measured; `max`: as many as are"
    " answered. May be given several times.",
)
@click.option(
    "--connections",
    type=_POSITIVE,
    default=_TRIAL.connections,
    show_default=True,
    help="Clients that ask as fast as they are answered, for the most throughput.",
)
@click.option("--nodes", type=_POSITIVE, help="Random nodes per request.  [default: 1]")
@click.option(
    "--requests",
    "requests_file",
    type=EXISTING_FILE,
    help="Real requests to send instead, one JSON object per line.",
)
@click.option(
    "--live/--stored",
    default=None,
    help="Whether each answer is computed, or mostly found where answers are kept."
    "  [default: live; requests of a file as they are]",
)
@click.option(
    "--p99-ms", type=click.FloatRange(min=0, min_open=True), help="The latency to keep, at each rate."
)
@click.option(
    "--batch-sizes", type=Numbers(), default=_listed(_GRID.batch_sizes), show_default=True, help="To try."
)
@click.option(
    "--delays-ms", type=Numbers(), default=_listed(_GRID.delays_ms), show_default=True, help="To try."
)
@click.option(
    "--workers", type=Numbers(), default=_listed(_GRID.num_workers), show_default=True, help="To try."
)
@click.option(
    "--threads", type=Numbers(), default=_listed(_GRID.num_threads), show_default=True, help="To try."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=_TRIAL.seconds,
    show_default=True,
    help="How long the most throughput, and the latency at each rate, is measured each time.",
)
@click.option(
    "--rounds",
    type=_POSITIVE,
    default=Search.num_rounds,
    show_default=True,
    help="How often the present and the two best settings are measured again, in turns.",
)
@click.option("--budget", type=Age(), default="10m", show_default=True, help="Time for all of it.")
@click.option("--plot", type=ANY_PATH, help="A picture of the trade-off, .png or .html.")
@click.option("--json", "json_file", type=ANY_PATH, help="A file for all that was measured.")
@with_server
def tune_command(
    archive: Path,
    rates: tuple[float | str, ...],
    connections: int,
    nodes: int | None,
    requests_file: Path | None,
    live: bool | None,
    p99_ms: float | None,
    batch_sizes: tuple[int, ...],
    delays_ms: tuple[int, ...],
    workers: tuple[int, ...],
    threads: tuple[int, ...],
    seconds: float,
    rounds: int,
    budget: float,
    plot: Path | None,
    json_file: Path | None,
    properties: ServerProperties,
) -> None:
    """Measure the packed model ARCHIVE on this machine, and propose how it is to be run.

    It is loaded into a TorchServe of its own, which is gone afterwards, under one setting after the other.
    The archive, and servers that run, are left as they are. An interrupt ends it, and shows what is known by
    then.
    """
    if nodes is not None and requests_file is not None:
        raise click.UsageError("--nodes and --requests exclude each other: requests say what they ask for")
    if plot is not None:
        check_picture_path(plot)
    for file in (plot, json_file):
        if file is not None and not file.parent.is_dir():
            raise click.UsageError(f"{file.parent} is no folder")
    clock = Budget(budget)
    original = read_original(archive)
    trial = Trial(
        _traffic(original, nodes, requests_file, live),
        tuple(dict.fromkeys(None if isinstance(rate, str) else rate for rate in rates)),
        connections,
        seconds,
    )
    findings = Findings(original.present, p99_ms)
    grid = Grid(batch_sizes, delays_ms, workers, threads)
    try:
        with _interruptible(), own_server_said(properties) as own:
            _search(Bench(own, original, trial), grid, clock, rounds, findings)
    finally:
        if findings.first:
            _show(findings, original, trial, plot, json_file)


def _traffic(original: Original, nodes: int | None, file: Path | None, live: bool | None) -> Traffic:
    max_nodes = original.settings.max_nodes_per_request
    # It is opened in any case: a graph that is not there is told at once.
    snapshot = Snapshot.open(Path(original.settings.graph))
    if file is not None:
        return read_traffic(file, max_nodes, live=bool(live))
    return random_traffic(snapshot, nodes or 1, max_nodes, live=live is not False)


@contextmanager
def own_server_said(like: ServerProperties) -> Iterator[ServerProperties]:
    """A server for the block, and words for the time that it takes."""
    say("starting a TorchServe to measure with")
    with own_server(like) as properties:
        yield properties
        say("stopping it")


def _search(bench: Bench, grid: Grid, clock: Budget, rounds: int, findings: Findings) -> None:
    at_most = 1 + grid.num_values + 3 * rounds
    with Bars().bar("measuring", at_most, " settings") as advance:
        search = Search(grid, bench.measure, clock, rounds, _reporter(advance))
        search.run(findings)


def _reporter(advance: Callable[[int], object]) -> Callable[[Candidate, Measured | str], None]:
    def report(candidate: Candidate, result: Measured | str) -> None:
        advance(1)
        if isinstance(result, str):
            say(f"{candidate}: {result}")
        else:
            say(f"{candidate}: {result.max_per_s:,.0f} req/s, p99 {milliseconds(result.p99_ms)} ms")

    return report


def _show(
    findings: Findings, original: Original, trial: Trial, plot: Path | None, json_file: Path | None
) -> None:
    table = table_of(findings)
    click.echo(str(table))
    click.echo()
    for line in sentences(findings, original, trial):
        click.echo(line)
    if json_file is not None:
        _write_json(json_file, as_json(findings, original, trial))
    if plot is not None:
        title = f"{original.stored.model} {original.stored.version}: {trial.traffic.source}"
        draw_trade_offs(_points(findings), findings.target_ms, plot, title, PageTable(table.head, table.rows))
        say(f"{plot}: the trade-off")


def _points(findings: Findings) -> list[TradeOff]:
    typical = [summary.typical for summary in findings.summaries()]
    front, proposal = {each.candidate for each in pareto_front(typical)}, findings.proposal()
    return [
        TradeOff(
            _short(each.candidate),
            each.max_per_s,
            each.p99_ms,
            is_present=each.candidate == findings.present,
            is_proposed=proposal is not None and each.candidate == proposal.candidate,
            is_best=each.candidate in front,
        )
        for each in typical
    ]


def _short(candidate: Candidate) -> str:
    threads = f", {candidate.num_threads} thr" if candidate.num_threads else ""
    delay = f"{candidate.max_batch_delay_ms} ms"
    return f"{candidate.batch_size}, {delay}, {candidate.num_workers} wkr{threads}"


def _write_json(file: Path, content: object) -> None:
    try:
        file.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise UpstreamError(f"{file}: cannot be written: {error.strerror}") from None


@contextmanager
def _interruptible() -> Iterator[None]:
    """Both ways to end a process are an interrupt, also where a shell has it ignored in the background."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = (
        signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.signal(signal.SIGTERM, interrupt),
    )
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
