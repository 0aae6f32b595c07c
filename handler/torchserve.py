"""The edge to TorchServe: the only module that knows its contexts, rows and metrics.

A context becomes settings, rows become request bodies, and responses become status, header and bytes.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
from ts.context import Context
from ts.metrics.metric_type_enum import MetricTypes
from ts.protocol import otf_message_handler

from handler import headers
from handler.afterwards import Afterwards
from handler.change_service import ChangeService
from handler.compacting import compact_regularly
from handler.errors import HopserveError, MalformedRequest, RequestError, SettingsError
from handler.graph.compiling import one_goes_first
from handler.graph.follower import follow
from handler.graph.opening import is_cluster, source_of
from handler.keeping import open_store
from handler.metrics import Counters, Metric, exposed_names
from handler.model.exported import ExportedModel
from handler.reading import BufferedReads
from handler.requests import Response
from handler.service import Service
from handler.settings import GRAPH_VARIABLE, Settings, parse_graph_settings, parse_settings
from handler.tracing import TRACEPARENT, Trace, tell, trace_of

_METRICS_PERIOD_S = 1.0
_WORKER = str(os.getpid())
_PROBED = Response(HTTPStatus.OK, "ok", b"{}")
_JSON_TYPES = frozenset({"", "application/json", "text/json"})
# Headers by which TorchServe marks requests for explanations and descriptions; any client can send them.
_EXPLAIN, _DESCRIBE = "explain", "describe"
_log = logging.getLogger(__name__)


class Answering(Protocol):
    """Whatever answers batches of requests."""

    def answer(self, bodies: Sequence[bytes | RequestError]) -> list[Response]:
        """One response per request, in order."""
        ...

    def explain(self, bodies: Sequence[bytes | RequestError]) -> list[Response]:
        """The same for requests for explanations."""
        ...

    def gauges(self) -> dict[Metric, float]:
        """How the service stands now."""
        ...


class _Handler:
    """What TorchServe calls: `initialize` once, then `handle` for every batch."""

    def __init__(self) -> None:
        self._service: Answering | None = None
        self._counters = Counters()
        self._afterwards = Afterwards()

    def initialize(self, context: Context) -> None:
        """Open the graph, load the model and warm up; TorchServe sends requests only afterwards.

        Raises:
            RuntimeError: with one line that says what is wrong; TorchServe logs it, and stops the worker.
        """
        try:
            self._service = self._load(context)
            _read_ahead(self._afterwards)
        except HopserveError as error:
            # TorchServe prints the traceback of whatever comes; the cause above it says nothing more.
            raise RuntimeError(_cannot_serve(context, str(error))) from None
        except Exception as error:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise RuntimeError(_cannot_serve(context, what)) from error

    def handle(self, data: Sequence[Mapping[str, Any]], context: Context) -> list[bytes]:
        """Answer one batch; never raises for anything that a request holds."""
        if self._service is None:
            raise RuntimeError("hopserve: handle was called before initialize")
        responses = [_PROBED] * len(data)
        asked = _read(data, context)
        if asked.predict or asked.explain:
            with self._counters.stages() as stages_us:
                for bodies, answer in (
                    (asked.predict, self._service.answer),
                    (asked.explain, self._service.explain),
                ):
                    if bodies:
                        answered = answer(list(bodies.values()))
                        for position, response in zip(bodies, answered, strict=True):
                            responses[position] = response
            for trace in asked.traces:
                status, together = responses[trace.position].status.value, len(asked)
                tell(trace, context.model_name, _version(context), status, together, stages_us)
        for position, response in enumerate(responses):
            _set_header(context, position, response)
        return [response.body for response in responses]

    def _load(self, context: Context) -> Answering:
        """The service of this worker."""
        raise NotImplementedError


class ModelHandler(_Handler):
    """Answers questions about nodes, by one model on one graph."""

    def _load(self, context: Context) -> Answering:
        config = dict(context.model_yaml_config or {})
        settings = parse_settings(_section(config))
        properties = context.system_properties
        device = _device(settings, properties.get("gpu_id"))
        if settings.cold_start and is_cluster(settings.graph):
            raise SettingsError("cold_start needs a graph on this machine, not in a cluster")
        torch.set_num_threads(settings.num_threads or _threads_per_worker(config))
        model = ExportedModel.load(Path(properties["model_dir"]), device)
        version, counters = _version(context), self._counters
        source = source_of(
            settings.graph, hot_bytes=settings.hot_bytes, max_wait_s=settings.max_wait_ms / 1000
        )
        store = None
        if not is_cluster(settings.graph):  # nothing is kept yet of answers from there
            store = open_store(settings, model.signature, context.model_name, version, counters)
        with one_goes_first():
            service = Service(source, model, settings, counters, version, store, self._afterwards)
            if settings.warm_up:
                service.warm_up(max(1, int(properties.get("batch_size") or 1)), _num_workers(config))
        _publish_regularly(service, counters, context, version)
        _settle()
        return service


class GraphHandler(_Handler):
    """Takes the mutations of one graph, and keeps its snapshots young."""

    def _load(self, context: Context) -> Answering:
        config = dict(context.model_yaml_config or {})
        settings = parse_graph_settings(_section(config))
        with one_goes_first():
            follower = follow(Path(settings.graph), lambda graph: graph)
        counters = self._counters
        service = ChangeService(follower, settings, counters)
        if settings.compact_after:
            compact_regularly(follower, settings.compact_after)
        _publish_regularly(service, counters, context, _version(context))
        _settle()
        return service


@dataclass
class _Asked:
    """What a batch asks, by position; probes ask nothing."""

    predict: dict[int, bytes | RequestError]
    explain: dict[int, bytes | RequestError]
    traces: list[Trace]

    def __len__(self) -> int:
        return len(self.predict) + len(self.explain)


def _read(data: Sequence[Mapping[str, Any]], context: Context) -> _Asked:
    asked = _Asked({}, {}, [])
    for position, row in enumerate(data):
        sent = {name.lower(): value for name, value in context.get_all_request_header(position).items()}
        if headers.PROBE in sent:
            continue
        bodies = asked.explain if sent.get(_EXPLAIN) == "True" else asked.predict
        bodies[position] = _body(row, sent)
        if TRACEPARENT in sent and (trace := trace_of(position, sent)) is not None:
            asked.traces.append(trace)
    return asked


def _read_ahead(afterwards: Afterwards) -> None:
    """From now on read TorchServe's messages in few system calls: it is the last that it was told to load.

    What is to be done after answers is done while the next message is waited for.
    """
    if hasattr(otf_message_handler, "_retrieve_buffer"):  # by which it reads everything
        otf_message_handler._retrieve_buffer = BufferedReads(afterwards.catch_up)
        afterwards.postpone()


def _settle() -> None:
    """What lives now lives until the end: the collector need not look at it again."""
    gc.collect()
    gc.freeze()


def _cannot_serve(context: Context, reason: str) -> str:
    return f"hopserve: cannot serve {context.model_name}: {reason}"


def _version(context: Context) -> str:
    return str(context.manifest["model"]["modelVersion"])


def _section(config: Mapping[str, Any]) -> dict[str, Any]:
    section = config.get("handler")
    if not isinstance(section, Mapping):
        raise SettingsError("model-config.yaml has no section `handler`")
    graph = os.environ.get(GRAPH_VARIABLE)
    return {**section, "graph": graph} if graph else dict(section)


def _device(settings: Settings, gpu_id: int | None) -> torch.device:
    has_gpu = torch.cuda.is_available()
    if settings.device == "cuda" and not has_gpu:
        raise SettingsError("device is `cuda`, but PyTorch finds no GPU here")
    if settings.device == "cpu" or not has_gpu or (settings.device == "auto" and gpu_id is None):
        return torch.device("cpu")
    return torch.device("cuda", gpu_id or 0)


def _threads_per_worker(config: Mapping[str, Any]) -> int:
    """A fair share of the cores, of which one is left to TorchServe's front end."""
    cores = len(os.sched_getaffinity(0))
    return max(1, (cores - 1) // _num_workers(config))


def _num_workers(config: Mapping[str, Any]) -> int:
    """How many workers the model may have."""
    return max(1, int(config.get("maxWorkers") or config.get("minWorkers") or 1))


def _body(row: Mapping[str, Any], sent: Mapping[str, Any]) -> bytes | RequestError:
    """The request's JSON, which REST puts under `body` and gRPC under a name of the client's choice.

    Args:
        sent: headers, by names in lower case.
    """
    if sent.get(_DESCRIBE) == "True":
        return MalformedRequest("this model does not describe itself: it predicts and explains")
    # TorchServe takes forms apart, so that nothing of the body may be left in the row.
    media_type = sent.get("content-type", "")
    if not _is_json(str(media_type)):
        return MalformedRequest(
            f"the content type is {media_type!r:.80}: send JSON, as Content-Type application/json"
        )
    if len(row) > 1:
        return MalformedRequest("query parameters or several parts came: send the JSON alone, as the body")
    value = next(iter(row.values()), b"")
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    # A TorchServe with decode_input_request=true has read text and JSON itself.
    try:
        return value.encode() if isinstance(value, str) else msgspec.json.encode(value)
    except (ValueError, RecursionError) as error:  # half a surrogate pair, or endless nesting
        return MalformedRequest(f"the request cannot be read: {error}")


@lru_cache
def _is_json(media_type: str) -> bool:
    kind = media_type.partition(";")[0].strip().lower()
    return kind in _JSON_TYPES or kind.endswith("+json")


def _set_header(context: Context, position: int, response: Response) -> None:
    context.set_response_content_type(position, "application/json")
    context.set_response_header(position, headers.WORKER, _WORKER)
    if response.unreadable:
        context.set_response_header(position, headers.UNREADABLE, "1")
    # The phrase is one of http.HTTPStatus: TorchServe loses the worker over a phrase that is not ASCII.
    context.set_response_status(response.status.value, response.status.phrase, position)


def _publish_regularly(service: Answering, counters: Counters, context: Context, version: str) -> None:
    """Hand the metrics to TorchServe once a second: every one is a log line that its front end parses."""
    common, worker = [context.model_name, version], worker_name(sys.argv)
    cache = context.metrics.cache
    declared = {**cache.get(MetricTypes.COUNTER, {}), **cache.get(MetricTypes.GAUGE, {})}
    missing = exposed_names() - declared.keys()
    if missing:
        _log.warning(
            "TorchServe's metrics_config does not declare %s: not published", ", ".join(sorted(missing))
        )

    told: dict[Metric, float] = {}

    def publish() -> None:
        for (metric, values), amount in counters.drain().items():
            if metric.name in declared:
                declared[metric.name].add_or_update(amount, [*values, *common])
        for metric, value in service.gauges().items():
            if metric.name in declared and told.get(metric) != value:
                told[metric] = value
                declared[metric.name].add_or_update(value, [worker, *common])

    def publish_regularly() -> None:
        while True:
            time.sleep(_METRICS_PERIOD_S)
            try:
                publish()
            except Exception:  # noqa: BLE001 - the next time may go well
                _log.exception("handing metrics over failed")

    threading.Thread(target=publish_regularly, name="hopserve-metrics", daemon=True).start()


def worker_name(arguments: Sequence[str]) -> str:
    """What a worker is called in metrics: the number of its socket, which its successor has too."""
    for name, value in pairwise(arguments):
        if name in {"--sock-name", "--port"}:
            return value.rpartition(".")[2]
    return "0"
