"""What consistent hashing does for the caches of several hosts, beside routing at random."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import msgspec
import numpy as np
from click.testing import CliRunner
from numpy.typing import NDArray
from scipy.optimize import brentq

from archive.export.export import export_model
from archive.pack import PackPlan, pack
from gateway.tuning.load import Sent, send_all
from handler.cache.embedded import LmdbCache
from handler.cache.outputs import Outputs
from handler.graph.home import write_home
from scripts.cli.main import hopserve
from tests.balancers import Balanced, balanced
from tests.bench.pipeline import DIMS, PLAN, Sage, power_law, show_table

TARGET = 1.5
_MODEL = "sage"
_CACHE_BYTES = 1 << 20
_EDGES_PER_NODE = 10
_CONNECTIONS = 32
_SHARE = 10  # a cache holds one node in so many
_FILLS = 4  # requests before those that count, in what a cache holds


@click.command("hosts")
@click.option("--hosts", "num_hosts", type=click.IntRange(2, 16), default=2, show_default=True)
@click.option(
    "--exponent",
    "exponents",
    type=click.FloatRange(0, 3),
    multiple=True,
    default=(0.5, 0.8),
    show_default=True,
    help="Of the Zipf law by which nodes are asked for; may be given several times.",
)
@click.option("--requests", "num_requests", type=click.IntRange(100), default=10_000, show_default=True)
def hosts_command(num_hosts: int, exponents: tuple[float, ...], num_requests: int) -> None:
    """How much of what is asked for is in a host's cache, which holds a tenth of the nodes.

    The same requests come to hosts by their nodes, and at random (each with an X-Node-Id of its own).
    Expected is what caches that drop what was used least recently reach after long (Che's approximation):
    with a load on few nodes, every cache holds these anyway, and there is little to gain.
    """
    click.echo(f"{len(os.sched_getaffinity(0))} cores are shared by all that runs\n")
    with TemporaryDirectory() as folder:
        held = _held(Path(folder, "probe"))
        num_nodes = held * _SHARE
        names = [f"host{number}" for number in range(num_hosts)]
        stores = {name: Path(folder, name, "model_store") for name in names}
        with _hosts(Path(folder), names, num_nodes) as hosts:
            rows = []
            for exponent in exponents:
                load = _zipf(num_nodes, exponent)
                measured = []
                for by_node in (True, False):
                    _clear(stores.values())
                    measured.append(_hit_ratio(hosts, load, num_requests, held * num_hosts, by_node=by_node))
                expected = _expected(load, held, num_hosts)
                rows.append(_row(exponent, *measured, expected))
    click.echo(f"{num_hosts} hosts, {num_nodes} nodes, {held} in each cache, {num_requests} requests\n")
    show_table(("Zipf exponent", "by node", "at random", "ratio", "expected", f"target {TARGET}"), rows)


def _held(folder: Path) -> int:
    """How many nodes a cache of this size holds."""
    cache = LmdbCache.open(folder, version="1.0", tag=1, dim=DIMS[2], max_bytes=_CACHE_BYTES)
    ids = np.arange(_CACHE_BYTES // DIMS[2] // 4)
    ones = np.ones(len(ids), dtype=np.int64)
    with closing(cache):
        for start in range(0, len(ids), 64):
            part = slice(start, start + 64)
            cache.put(
                ids[part].tolist(),
                Outputs(
                    np.zeros((len(ids[part]), DIMS[2]), dtype=np.float32),
                    ones[part].astype(np.uint64),
                    ones[part],
                    ones[part],
                    ones[part].astype(np.int32),
                ),
            )
            cache.flush()
        return len(cache.get(ids.tolist()).place)


def _hosts(folder: Path, names: list[str], num_nodes: int) -> Balanced:
    export_model(Sage().eval(), PLAN, folder / "model")
    write_home(folder / "graph", power_law(num_nodes * _EDGES_PER_NODE, _EDGES_PER_NODE))

    def archive(host: str) -> Path:
        settings = {"embeddings": str(folder / "embeddings" / host), "cache_bytes": _CACHE_BYTES}
        plan = PackPlan(
            _MODEL, "1.0", model_folder=folder / "model", graph_folder=folder / "graph", settings=settings
        )
        return pack(plan, folder / "store")

    return balanced(folder, archive, names, settings={"max_load": 100})


def _clear(stores: Iterator[Path]) -> None:
    for store in stores:
        command = ["cache", "clear", "--model", _MODEL, "--store", str(store)]
        CliRunner().invoke(hopserve, command, catch_exceptions=False)


def _zipf(num_nodes: int, exponent: float) -> NDArray[np.float64]:
    """float64 [num_nodes]: how likely each node is asked for; popular ones have any ids."""
    weights = 1 / np.arange(1, num_nodes + 1) ** exponent
    return np.random.default_rng(1).permutation(weights / weights.sum())


def _hit_ratio(
    hosts: Balanced, load: NDArray[np.float64], num_requests: int, num_held: int, *, by_node: bool
) -> float:
    """Share of the requests that a cache answers, once the caches are full."""
    draw = np.random.default_rng(2)
    nodes = draw.choice(len(load), size=_FILLS * num_held + num_requests, p=load).tolist()
    requests = [
        Sent(
            msgspec.json.encode({"node_id": node}),
            {"content-type": "application/json"} | ({} if by_node else {"x-node-id": str(number)}),
        )
        for number, node in enumerate(nodes)
    ]
    url = hosts.url(f"/v1/{_MODEL}/predict")
    send_all(url, {}, requests[:-num_requests], _CONNECTIONS)
    answered = send_all(url, {}, requests[-num_requests:], _CONNECTIONS)
    failed = [answer.status for answer in answered if answer.status != 200]
    if failed:
        raise click.ClickException(f"{len(failed)} requests failed, the first with {failed[0]}")
    return float(np.mean([b'"source":"cache"' in answer.body for answer in answered]))


def _expected(load: NDArray[np.float64], held: int, num_hosts: int) -> float:
    """Of the hit ratios by node and at random: how many times the other the first is, after long."""
    parts = [load[number::num_hosts] for number in range(num_hosts)]
    by_node = sum(_hits(part / part.sum(), held) * part.sum() for part in parts)
    return float(by_node / _hits(load, held))


def _hits(load: NDArray[np.float64], held: int) -> float:
    """Hit ratio of a cache that holds so many and drops what was used least recently."""
    if held >= len(load):
        return 1.0
    stays = brentq(lambda time: (1 - np.exp(-load * time)).sum() - held, 0, 1e12)
    return float(((1 - np.exp(-load * stays)) * load).sum())


def _row(exponent: float, by_node: float, at_random: float, expected: float) -> list[str]:
    ratio = by_node / at_random
    return [
        f"{exponent:g}",
        f"{by_node:.3f}",
        f"{at_random:.3f}",
        f"{ratio:.2f}",
        f"{expected:.2f}",
        "met" if ratio >= TARGET else "missed",
    ]
