"""What a worker may be told, parsed and checked once at the edge."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from handler.errors import LogUnavailable, SettingsError

_Kind = TypeVar("_Kind", bound=msgspec.Struct)
ColdMethod = Literal["features", "expanded", "mean", "normal"]
#: In the environment of a process: a folder instead of the graphs that archives name.
GRAPH_VARIABLE = "HOPSERVE_GRAPH"
_IN_ENVIRONMENT = "env:"
Positive = Annotated[int, msgspec.Meta(ge=1)]


class ColdStage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How nodes up to some age are answered.

    Args:
        until_h: hours since the node was added, in which this stage counts unless an earlier one does.
        method: `features`: the model on the node without neighbors; `expanded`: with `factor` times as many
            neighbors; `mean`: the mean of all precomputed answers; `normal`.
        fallbacks: what is tried where the method has nothing to go by: no features, no more neighbors than
            are sampled anyway, or no table. After the last of them comes `normal`.
        factor: of `expanded`.
    """

    until_h: Annotated[float, msgspec.Meta(gt=0)]
    method: ColdMethod
    fallbacks: tuple[ColdMethod, ...] = ()
    factor: Annotated[int, msgspec.Meta(ge=2, le=16)] = 2


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `handler` section of a model archive's `model-config.yaml`.

    Args:
        graph: folder of the graph snapshot, or its place in a cluster: redis+cluster://HOST:PORT/NAME.
        hot_bytes: memory of a worker for the nodes that it reads most of a graph in a cluster.
        device: where the model runs; `auto` is the GPU that TorchServe assigns, else the CPU.
        num_threads: threads of one forward on the CPU; 0 divides the machine's cores, less one for
            TorchServe's front end, among the model's workers.
        max_nodes_per_request: longer lists are refused.
        max_response_bytes: larger answers are refused; TorchServe kills the worker of an answer above
            its own `max_response_size` (6,553,500 by default), so this must stay below that.
        max_nodes_per_forward, max_edges_per_forward: the nodes and edges of the sampled trees that the
            model is given at once; more seeds are answered in several forwards.
        over_budget: a single node whose tree is larger than that is answered from smaller samples
            (`truncate`) or refused.
        max_bytes_per_forward: the memory that one forward may take at its peak, beyond what the loaded
            model holds; what a node takes is measured at warm-up. 0 takes half of what is then free,
            divided among the model's workers. It decides how many seeds share a forward, and never how
            a node is sampled.
        max_resident_bytes: features up to this size are kept on the GPU, by each worker for itself.
        warm_up: run the model over the batch sizes to come before the worker is ready.
        max_wait_ms: how long a batch waits for the mutation that a request asks for by `min_seq`.
        embeddings: folder of precomputed tables and of the cache; none for `embeddings` in that of the graph.
        cache: where answers are kept: `embedded` in that folder, for the workers of this host; the URL of a
            Redis server, for several hosts, or `env:NAME` of a variable that holds it; or `off`.
        cache_bytes: the most that the embedded cache may take on the disk; what was not used for the longest
            time goes first. A server has its own limit.
        cache_timeout_ms: how long a batch waits for a server; then it goes on without.
        cache_ttl_s: how long a server keeps an answer.
        max_staleness_ms: how old a stored answer may be where a request does not say; none: it must be proven
            to be what the model would say now.
        cold_start: how new nodes are answered; none: as all others are.
        explain_ms: how long the explanations that come together may take; what is left of them is refused.
        similar_recent: so many of the nodes that were touched last are looked at for each request for similar
            nodes, whatever the index knows of them.
    """

    graph: str
    hot_bytes: Annotated[int, msgspec.Meta(ge=0)] = 268_435_456
    device: Literal["auto", "cpu", "cuda"] = "auto"
    num_threads: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_nodes_per_request: Positive = 2048
    max_response_bytes: Positive = 6_000_000
    max_nodes_per_forward: Positive = 262_144
    max_edges_per_forward: Positive = 262_144
    max_bytes_per_forward: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_resident_bytes: Annotated[int, msgspec.Meta(ge=0)] = 1_073_741_824
    over_budget: Literal["truncate", "refuse"] = "truncate"
    warm_up: bool = True
    max_wait_ms: Positive = 200
    embeddings: str | None = None
    cache: str = "embedded"
    cache_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 1 << 30
    cache_timeout_ms: Positive = 5
    cache_ttl_s: Positive = 604_800
    max_staleness_ms: Annotated[float, msgspec.Meta(ge=0)] | None = None
    cold_start: tuple[ColdStage, ...] = ()
    explain_ms: Positive = 200
    similar_recent: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 256


class GraphSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `handler` section of the archive through which a graph is changed.

    Args:
        graph: folder of the graph, as `hopserve graph build` makes it.
        max_mutations_per_request: larger requests are refused.
        max_response_bytes: see `Settings`.
        compact_after: a new snapshot is made so many mutations after the latest one, or as many as a tenth of
            its edges if that is more. 0: only by hand.
    """

    graph: str
    max_mutations_per_request: Positive = 100_000
    max_response_bytes: Positive = 6_000_000
    compact_after: Annotated[int, msgspec.Meta(ge=0)] = 200_000


def parse_settings(section: Mapping[str, Any]) -> Settings:
    """Check a mapping, as YAML gives it; a wrong one is a `SettingsError` that names the key."""
    return _parsed(section, Settings)


def parse_graph_settings(section: Mapping[str, Any]) -> GraphSettings:
    """As `parse_settings`, for the archive of a graph."""
    return _parsed(section, GraphSettings)


def read_location(location: str) -> str:
    """Where a log or a cache is; `env:NAME` stands for what the environment says, as files hold no passwords.

    Raises:
        LogUnavailable: there is no such variable.
    """
    if not location.startswith(_IN_ENVIRONMENT):
        return location
    name = location.removeprefix(_IN_ENVIRONMENT)
    if not os.environ.get(name):
        raise LogUnavailable(f"{location}: the environment has no {name}, such as redis://host:6379/0")
    return os.environ[name]


def _parsed(section: Mapping[str, Any], kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.convert(section, kind)
    except msgspec.ValidationError as error:
        raise SettingsError(f"model-config.yaml, section `handler`: {error}") from None
