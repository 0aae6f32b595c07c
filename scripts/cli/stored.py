"""`hopserve cache` and `policy`: what is stored of answers, and how a node would be answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from archive.reading import PackedModel, packed_versions, unpacked
from handler.afterwards import Afterwards
from handler.cache.opening import open_store as open_cache_store
from handler.cache.protocol import CacheStore
from handler.errors import SettingsError, UnknownNode
from handler.graph.follower import open_source
from handler.graph.ids import NodeId
from handler.graph.live_graph import LiveGraph
from handler.graph.views import Views
from handler.inputs import ModelInputs
from handler.keeping import cache_folder, cache_prefix, open_store
from handler.metrics import Counters
from handler.newcomers import Newcomers
from handler.settings import ColdMethod
from handler.stored import StoredAnswers, Verdict
from scripts.cli.options import ANY_PATH, show_json


def _of_model(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--model`, `--store` and `--graph`."""
    for option in (
        click.option("--graph", type=ANY_PATH, help="Instead of the graph that the archive names."),
        click.option(
            "--store", type=ANY_PATH, default=Path("model_store"), show_default=True, help="Model store."
        ),
        click.option("--model", "name", default="graphsage", show_default=True, help="Model name."),
    ):
        function = option(function)
    return function


@click.group("cache")
def cache() -> None:
    """Look at, and clear, the answers that are kept."""


@cache.command("stats")
@_of_model
@click.option("--version", help="Only what this version has put there.  [default: all]")
def stats_command(name: str, store: Path, graph: Path | None, version: str | None) -> None:
    """Show what the cache of a model holds, by version."""
    with _any_version(store, name, graph) as model, _cache_store(model) as kept:
        show_json(
            [
                {
                    "version": each.version,
                    "entries": each.num_entries,
                    "bytes": each.num_bytes,
                    "oldest": _shown(each.oldest_us / 1e6),
                    "newest": _shown(each.newest_us / 1e6),
                }
                for each in kept.stats()
                if version in {None, each.version}
            ]
        )


@cache.command("clear")
@_of_model
@click.option("--version", help="Only what this version has put there.  [default: all]")
def clear_command(name: str, store: Path, graph: Path | None, version: str | None) -> None:
    """Remove answers from the cache of a model; tables stay."""
    with _any_version(store, name, graph) as model, _cache_store(model) as kept:
        removed = kept.clear(version)
    click.echo(f"{name}: {removed} answers removed")


@click.group("policy")
def policy() -> None:
    """Look at how nodes are answered."""


@policy.command("explain")
@click.argument("node")
@_of_model
@click.option("--model-version", help="Version.  [default: the only one in the store]")
def explain_command(node: str, name: str, model_version: str | None, store: Path, graph: Path | None) -> None:
    """Tell from what a worker would answer NODE now, and why; nothing is computed or kept."""
    with unpacked(store, name, model_version, graph) as model:
        show_json(_explained(node, model))


def _explained(node: str, model: PackedModel) -> dict[str, Any]:
    """What `policy explain` shows."""
    settings, signature = model.settings, model.signature
    store = open_store(settings, signature, model.name, model.version, Counters())
    views: Views[LiveGraph] = open_source(Path(settings.graph))(signature.sampling, lambda graph: graph)
    with closing(store), closing(views), views.reading() as graph:
        node_id, index = _found(graph, node)
        inputs = ModelInputs(graph, signature, settings)
        decision = Newcomers(graph, inputs, signature, settings, store, Counters()).decide(index, time.time())
        kept = StoredAnswers(store, graph, inputs, signature, Counters(), Afterwards())
        verdict = _SOURCES.get(decision.method) or kept.explain(index, node_id, settings.max_staleness_ms)
        return {
            "node_id": node_id,
            "created": _shown(graph.created_at(index)),
            "stage": decision.stage,
            "method": decision.method,
            "source": verdict.source,
            "why": "; ".join(filter(None, [decision.why, verdict.why])),
            "seq": graph.seq,
        }


_SOURCES: dict[ColdMethod, Verdict] = {
    "features": Verdict("features", ""),
    "expanded": Verdict("expanded", ""),
    "mean": Verdict("fallback", ""),
}


def _found(graph: LiveGraph, node: str) -> tuple[NodeId, int]:
    """A node by what was typed for its id."""
    node_id: NodeId = node
    if graph.ids.id_type is int:
        try:
            node_id = int(node)
        except ValueError:
            raise UnknownNode(node) from None
    index = int(graph.ids.index_of([node_id])[0])
    if index < 0:
        raise UnknownNode(node_id)
    return node_id, index


def _any_version(store: Path, name: str, graph: Path | None) -> AbstractContextManager[PackedModel]:
    """A model by its latest archive: all its versions share a cache."""
    return unpacked(store, name, next(reversed(packed_versions(store, name)), None), graph)


@contextmanager
def _cache_store(model: PackedModel) -> Iterator[CacheStore]:
    settings = model.settings
    if settings.cache == "off":
        raise SettingsError(f"{model.name} {model.version}: its cache is off")
    folder, prefix = cache_folder(settings, model.name), cache_prefix(settings, model.name)
    with closing(open_cache_store(settings.cache, folder, prefix)) as store:
        yield store


def _shown(seconds: float) -> str | None:
    """A time as people write it; none for 0."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else None
