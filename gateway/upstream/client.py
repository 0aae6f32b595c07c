"""Speaks with TorchServe's REST interfaces."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar

import httpx
import msgspec

from gateway.errors import NoAnswer, Refused, UpstreamError
from gateway.upstream.properties import ServerProperties
from gateway.upstream.tokens import Purpose, Tokens
from handler import headers

_TIMEOUT_S = 120.0
_SETTLE_S = 3.0
_START_TIMEOUT_S = 330.0  # more than the 300 s that TorchServe gives a worker to start
_Kind = TypeVar("_Kind")


class Worker(msgspec.Struct, frozen=True):
    """One worker process, as TorchServe describes it; `status` is READY when it takes requests."""

    id: str
    status: str
    pid: int
    gpu: bool = False


class QueueStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The queue of a model version."""

    pending_requests: int = 0
    remaining_capacity: int = 0


class ModelVersion(msgspec.Struct, frozen=True, rename="camel"):
    """A registered version of a model, as TorchServe describes it."""

    model_name: str
    model_version: str
    model_url: str
    min_workers: int
    max_workers: int
    batch_size: int
    max_batch_delay: int
    workers: tuple[Worker, ...]
    job_queue_status: QueueStatus = QueueStatus()

    @property
    def num_ready(self) -> int:
        return sum(worker.status == "READY" for worker in self.workers)


class _Listed(msgspec.Struct, frozen=True, rename="camel"):
    model_name: str


class _Listing(msgspec.Struct, frozen=True, rename="camel"):
    models: tuple[_Listed, ...]
    next_page_token: str | None = None


class Client:
    """A client of one server; use it in a `with` statement.

    Every method raises `Refused` when TorchServe answers with an error, and `NoAnswer` when it does not
    answer.
    """

    def __init__(self, properties: ServerProperties) -> None:
        self._properties = properties
        self._tokens = Tokens(properties)
        self._http = httpx.Client(timeout=_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def predict(self, model: str, version: str | None, request: dict[str, Any]) -> Any:
        """The answer's JSON to one request, of a version or of the default one."""
        path = f"/predictions/{model}" + (f"/{version}" if version else "")
        return self._send("inference", "POST", path, json=request).json()

    def explain(self, model: str, version: str | None, request: dict[str, Any]) -> Any:
        """The same of a request for an explanation."""
        path = f"/explanations/{model}" + (f"/{version}" if version else "")
        return self._send("inference", "POST", path, json=request).json()

    def predict_encoded(self, model: str, content: bytes) -> bytes:
        """The same, of a request and an answer that are JSON already."""
        as_json = {"Content-Type": "application/json"}
        return self._send(
            "inference", "POST", f"/predictions/{model}", content=content, headers=as_json
        ).content

    def model_names(self) -> list[str]:
        """The registered models."""
        names: list[str] = []
        token: str | None = ""
        while token is not None:
            parameters = {"next_page_token": token} if token else {}
            page = self._manage("GET", "/models", _Listing, params=parameters)
            names += [model.model_name for model in page.models]
            token = page.next_page_token
        return names

    def versions(self, model: str) -> list[ModelVersion]:
        """All versions of a model."""
        return list(self._manage("GET", f"/models/{model}/all", tuple[ModelVersion, ...]))

    def all_versions(self) -> list[ModelVersion]:
        """All versions of all models."""
        return [version for model in self.model_names() for version in self.versions(model)]

    def version(self, model: str, version: str | None = None) -> ModelVersion:
        """One version of a model, or its default one."""
        path = f"/models/{model}" + (f"/{version}" if version else "")
        return self._manage("GET", path, tuple[ModelVersion, ...])[0]

    def register(self, archive: str) -> str:
        """Register an archive of the model store by its file name; returns when its workers are ready.

        A version whose workers cannot start is taken back; TorchServe itself leaves it, without workers.
        """
        parameters = {"url": archive, "initial_workers": "1", "synchronous": "true"}
        try:
            return self._manage(
                "POST", "/models", _Status, params=parameters, timeout=_START_TIMEOUT_S
            ).status
        except Refused as refusal:
            if refusal.status == httpx.codes.INTERNAL_SERVER_ERROR:
                self._take_back(archive)
            raise

    def scale(self, model: str, version: str, num_workers: int, drain_timeout_s: float) -> str:
        """Change the number of workers; returns when they are ready.

        To have fewer, the version is drained first: the requests that a worker holds when TorchServe
        removes it never get an answer.
        """
        if num_workers < len(self.version(model, version).workers):
            self.drain(model, version, drain_timeout_s)
        parameters = {"min_worker": num_workers, "max_worker": num_workers, "synchronous": "true"}
        path = f"/models/{model}/{version}"
        try:
            return self._manage("PUT", path, _Status, params=parameters, timeout=_START_TIMEOUT_S).status
        except Refused as refusal:
            if refusal.status != httpx.codes.INTERNAL_SERVER_ERROR:
                raise
            # TorchServe can remove a worker and fail then, while the worker's own thread gives back requests.
            if not self._has_workers(model, version, num_workers):
                raise
            return f"Workers scaled to {num_workers} for model: {model}"

    def _has_workers(self, model: str, version: str, num_workers: int) -> bool:
        """Whether a version has exactly so many workers, and all take requests, by now or in a moment."""
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline:
            state = self.version(model, version)
            if state.num_ready == len(state.workers) == num_workers:
                return True
            time.sleep(_SETTLE_S / 20)
        return False

    def set_default(self, model: str, version: str) -> str:
        """Make a version the one that answers requests that name none."""
        return self._manage("PUT", f"/models/{model}/{version}/set-default", _Status).status

    def drain(self, model: str, version: str, timeout_s: float) -> None:
        """Return when a version has answered all that it was asked before this call.

        TorchServe does not say what its workers are at. But its queue is first in, first out, and each
        worker answers one batch after the other: so once every worker has answered a request that was
        sent now, all earlier ones are answered. Hopserve's workers sign their answers for that.

        Raises:
            UpstreamError: not in time.
        """
        deadline = time.monotonic() + timeout_s
        answered: set[str] = set()
        while True:
            state = self.version(model, version)
            ready = {str(worker.pid) for worker in state.workers if worker.status == "READY"}
            if ready <= answered:
                return
            if time.monotonic() > deadline:
                raise UpstreamError(f"{model} {version} is still answering requests after {timeout_s:.0f} s")
            worker = self.probe(model, version, max(0.1, deadline - time.monotonic()))
            if worker is not None:
                answered.add(worker)
            elif time.monotonic() < deadline and not state.job_queue_status.pending_requests:
                return  # another handler, which does not sign: no more can be known than an empty queue

    def probe(self, model: str, version: str, timeout_s: float) -> str | None:
        """The worker that answers a request which asks nothing; none if it does not say so."""
        url = f"{self._properties.inference_url}/predictions/{model}/{version}"
        asking_nothing = {headers.PROBE: "1"} | self._tokens.headers("inference")
        try:
            answer = self._http.post(url, headers=asking_nothing, json={}, timeout=timeout_s)
        except httpx.HTTPError:
            return None
        signature: str | None = answer.headers.get(headers.WORKER)
        return signature

    def unregister(self, model: str, version: str) -> str:
        """Remove a version at once; drain it first, or the requests in it never get an answer."""
        return self._manage("DELETE", f"/models/{model}/{version}", _Status).status

    def not_ready(self, expected: Collection[tuple[str, str]]) -> list[str]:
        """What is not serving yet: versions with fewer workers than they should have, in words.

        Args:
            expected: pairs of model and version that must be registered and have a worker.
        """
        registered = {(version.model_name, version.model_version): version for version in self.all_versions()}
        missing = [f"{model} {version}" for model, version in set(expected) - set(registered)]
        for name, state in registered.items():
            wanted = max(state.min_workers, 1 if name in expected else 0)
            if state.num_ready < wanted:
                missing.append(f"{' '.join(name)} ({state.num_ready} of {wanted} workers)")
        return sorted(missing)

    def _take_back(self, archive: str) -> None:
        for version in self.all_versions():
            if version.model_url == archive and not version.workers:
                self.unregister(version.model_name, version.model_version)

    def _manage(self, method: str, path: str, kind: type[_Kind], **options: Any) -> _Kind:
        answer = self._send("management", method, path, **options)
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.DecodeError as error:
            raise UpstreamError(f"{method} {path}: TorchServe's answer is not understood: {error}") from None

    def _send(
        self,
        purpose: Purpose,
        method: str,
        path: str,
        headers: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> httpx.Response:
        base = self._properties.inference_url if purpose == "inference" else self._properties.management_url
        try:
            keys = self._tokens.headers(purpose)
            answer = self._http.request(method, base + path, headers={**headers, **keys}, **options)
        except httpx.HTTPError as error:
            raise NoAnswer(f"TorchServe does not answer at {base}: {error}") from None
        if answer.is_error:
            raise Refused(answer.status_code, _message(answer))
        return answer


class _Status(msgspec.Struct, frozen=True):
    status: str


def _message(answer: httpx.Response) -> str:
    """The words of an error, which TorchServe and the handler put in different places."""
    try:
        content = answer.json()
    except ValueError:
        return answer.text.strip()
    error = content.get("error", content) if isinstance(content, dict) else None
    return str(error.get("message", content)) if isinstance(error, dict) else str(content)
