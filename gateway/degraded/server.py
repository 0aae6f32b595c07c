"""The HTTP application that gives degraded answers in the place of TorchServe."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest

from gateway.degraded.answering import Degraded, DegradedAnswers, NotPrecomputed, refused
from gateway.degraded.tables import LastAnswers
from gateway.headers import DEGRADED
from handler import headers
from handler.errors import InternalError, MalformedRequest, RequestError

_SIGNATURE = "degraded"
_JSON_TYPES = frozenset({"", "application/json", "text/json"})
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = logging.getLogger(__name__)


class _TooLarge(RequestError):
    """The request's body is longer than the server takes."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    code = "request_too_large"

    def __init__(self, allowed_bytes: int) -> None:
        super().__init__(f"the request is longer than {allowed_bytes} bytes")


def degraded_app(
    last: LastAnswers,
    *,
    max_in_flight: int = 128,
    num_threads: int = 2,
    registry: CollectorRegistry | None = None,
) -> web.Application:
    """What answers requests to `/predictions/MODEL/VERSION` while that version cannot.

    Every answer is signed as those of workers are, so that the gateway does not send the request again.

    Args:
        max_in_flight: so many requests are in memory at once; further ones are answered 503.
        num_threads: which look answers up.
        registry: of its own counters, which `/metrics` shows; none for one of its own.
    """
    service = _Service(last, max_in_flight, num_threads, registry or CollectorRegistry())
    app = web.Application(client_max_size=last.properties.max_request_bytes, middlewares=[_signed])
    app.cleanup_ctx.append(service.running)
    app.router.add_route("*", "/predictions/{model}/{version}", service.predict)
    app.router.add_route("*", "/explanations/{model}/{version}", service.explain)
    app.router.add_get("/metrics", service.metrics)
    return app


@web.middleware
async def _signed(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Sign whatever is answered, and write refusals as workers do."""
    try:
        response = await handler(request)
    except web.HTTPException as error:
        code = HTTPStatus(error.status).name.lower()
        text = f'{{"error":{{"code":"{code}","message":"{HTTPStatus(error.status).phrase}"}}}}'
        kept = {"allow": error.headers["allow"]} if "allow" in error.headers else {}
        response = web.Response(status=error.status, text=text, content_type="application/json", headers=kept)
    except Exception:  # noqa: BLE001 - unsigned, it would be sent again
        _log.exception("a request failed")
        response = _response(refused(InternalError()))
    response.headers[headers.WORKER] = _SIGNATURE
    return response


class _Service:
    """The handlers of the application, and what they share."""

    def __init__(
        self, last: LastAnswers, max_in_flight: int, num_threads: int, registry: CollectorRegistry
    ) -> None:
        self._last = last
        self._answers = DegradedAnswers(last)
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="hopserve-degraded")
        self._registry = registry
        self._counter = Counter(
            "hopserve_degraded_answers_total",
            "Requests answered in the place of a model version, by how: precomputed, unavailable or refused.",
            ("model", "version", "kind"),
            registry=registry,
        )

    async def running(self, app: web.Application) -> AsyncIterator[None]:
        """Open tables before the first request, and end the threads after the last."""
        await self._in_thread(self._last.warm_up)
        yield
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def predict(self, request: web.Request) -> web.Response:
        """Answer from a table."""
        if headers.PROBE in request.headers and request.method in {"GET", "HEAD", "POST"}:
            return await self._answered(request, self._answers.health)
        if request.method != "POST":
            raise web.HTTPMethodNotAllowed(request.method, ["POST"])
        if self._in_flight >= self._max_in_flight:
            return self._respond(request, refused(NotPrecomputed("too many ask for what is precomputed")))
        self._in_flight += 1
        try:
            return await self._answered(request, self._answers.answer, await self._body(request))
        except RequestError as error:
            return self._respond(request, refused(error))
        finally:
            self._in_flight -= 1

    async def explain(self, request: web.Request) -> web.Response:
        """Explanations are not precomputed."""
        return self._respond(request, refused(NotPrecomputed("explanations are not precomputed")))

    async def metrics(self, request: web.Request) -> web.Response:
        """The counters, in Prometheus's text form; that they come says that the service runs."""
        registry: Any = self._registry
        if names := request.query.getall("name[]", []):
            registry = self._registry.restricted_registry(names)
        return web.Response(body=generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _body(self, request: web.Request) -> bytes:
        """The request's JSON; what workers refuse unread is refused here, too."""
        for name in ("describe", "explain"):
            if request.headers.get(name) == "True":
                raise MalformedRequest(f"the header `{name}` is not for clients")
        media_type = request.headers.get("content-type", "")
        if not _is_json(media_type):
            raise MalformedRequest(
                f"the content type is {media_type!r:.80}: send JSON, as Content-Type application/json"
            )
        if request.query:
            raise MalformedRequest("query parameters or several parts came: send the JSON alone, as the body")
        try:
            return await request.read()
        except web.HTTPRequestEntityTooLarge:
            raise _TooLarge(request.client_max_size) from None

    async def _answered(
        self, request: web.Request, answer: Callable[..., Degraded], *arguments: bytes
    ) -> web.Response:
        model, version = request.match_info["model"], request.match_info["version"]
        return self._respond(request, await self._in_thread(answer, model, version, *arguments))

    def _respond(self, request: web.Request, degraded: Degraded) -> web.Response:
        model, version = request.match_info["model"], request.match_info["version"]
        if not self._last.knows(model, version):
            model = version = ""  # so that nobody makes labels up
        self._counter.labels(model, version, degraded.headers.get(DEGRADED, "refused")).inc()
        return _response(degraded)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


def _response(degraded: Degraded) -> web.Response:
    return web.Response(
        status=degraded.status,
        body=degraded.body,
        headers={**degraded.headers, "content-type": "application/json"},
    )


def _is_json(media_type: str) -> bool:
    kind = media_type.partition(";")[0].strip().lower()
    return kind in _JSON_TYPES or kind.endswith("+json")
