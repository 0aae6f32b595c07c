"""Serves the page and what it asks for, to people on this machine only."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from gateway.console.look import Answer, Look, Looker, failed
from gateway.console.observe import Metrics
from gateway.console.sampling import Readers, Sampler
from gateway.console.series import VersionName
from gateway.console.state import describe
from gateway.envoy.admin import Admin
from gateway.errors import RolloutError
from gateway.rollout.manifest import Manifest
from gateway.rollout.observe import observe
from gateway.rollout.rollouts import Rollouts
from gateway.upstream.client import Client
from gateway.upstream.properties import ServerProperties

PREFIX = "/console"
_MAX_BODY_BYTES = 8_192
_FILES = {
    "page.html": "text/html",
    "console.css": "text/css",
    "console.js": "text/javascript",
    "charts.js": "text/javascript",
    "dom.js": "text/javascript",
    "graph.js": "text/javascript",
    "tables.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_SESSION = web.AppKey("console_session", aiohttp.ClientSession)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Console:
    """The console: an application to be mounted at `PREFIX`, and a duty to be done every `SAMPLE_S`.

    Args:
        read: gives the state of rollouts; may raise RolloutError.
        sampler: `sample` is called by one thread of the owner.
        status: what the controller says of itself.
        close: called at the end.
    """

    def __init__(
        self,
        read: Callable[[], Manifest],
        sampler: Sampler,
        looker: Looker,
        status: Callable[[], Mapping[str, Any]],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._read = read
        self._sampler = sampler
        self._looker = looker
        self._status = status
        self._close = close
        self._closed = False
        # By which a page sees that the points are those of another controller, numbered anew.
        self._run = secrets.token_hex(8)
        self.app = web.Application(middlewares=[_guarded])
        self.app.cleanup_ctx.append(self._running)
        self.app.router.add_get("", partial(_file, "page.html"))
        self.app.router.add_get("/", partial(_file, "page.html"))
        for name in _FILES:
            self.app.router.add_get(f"/{name}", partial(_file, name))
        self.app.router.add_get("/state", self._state)
        self.app.router.add_post("/look", self._look)

    @classmethod
    def of(
        cls,
        rollouts: Rollouts,
        admin: Admin,
        properties: ServerProperties,
        status: Callable[[], Mapping[str, Any]],
        degraded: Callable[[], Mapping[VersionName, int]],
    ) -> Console:
        """The console of a gateway; see `Controller`."""
        metrics, client = Metrics(properties), Client(properties)

        def close() -> None:
            metrics.close()
            client.__exit__(None, None, None)

        readers = Readers(lambda: observe(admin, degraded()), metrics.read, client.all_versions)
        return cls(rollouts.read, Sampler(readers), Looker(properties), status, close)

    def sample(self) -> None:
        """Add a point to the charts."""
        try:
            self._sampler.sample()
        except RuntimeError:  # its connections were closed in the middle of it
            if not self._closed:
                raise

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession() as session:
            app[_SESSION] = session
            yield
        self._closed = True
        self._close()

    async def _state(self, request: web.Request) -> web.Response:
        query = request.query
        last = query.get("since", "")
        is_same = query.get("run") == self._run and last.isdecimal() and len(last) < 16
        body = await asyncio.to_thread(self._described, int(last) if is_same else 0)
        return web.Response(body=body, content_type="application/json")

    def _described(self, last: int) -> bytes:
        self._sampler.watch()
        status = dict(self._status())
        try:
            manifest = self._read()
        except RolloutError as error:
            manifest = Manifest()
            status["problems"] = [*status.get("problems", []), str(error)]
        described = describe(manifest, status, self._sampler.seen, self._sampler.series.since(last))
        return msgspec.json.encode({"run": self._run, **described})

    async def _look(self, request: web.Request) -> web.Response:
        try:
            body = await request.clone(client_max_size=_MAX_BODY_BYTES).read()
            asked = msgspec.json.decode(body, type=Look)
        except web.HTTPRequestEntityTooLarge:
            return _json(failed(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request_too_large", "that is too long"))
        except msgspec.DecodeError as error:
            return _json(failed(HTTPStatus.BAD_REQUEST, "malformed", str(error)))
        answer = await self._looker.look(request.app[_SESSION], asked)
        # A browser reports statuses of errors as faults of the page. This one told what it was asked for.
        return _json(Answer(HTTPStatus.OK, {"status": answer.status, "answer": answer.content}))


@web.middleware
async def _guarded(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Refuse what no page of ours sends, and tell browsers to load nothing from elsewhere."""
    response: web.StreamResponse
    refused = _refused(request)
    if refused is not None:
        response = _json(failed(HTTPStatus.FORBIDDEN, "forbidden", refused))
    else:
        try:
            response = await handler(request)
        except web.HTTPException as error:
            status = HTTPStatus(error.status)
            response = _json(failed(status, status.name.lower(), status.phrase))
    response.headers.update(_HEADERS)
    return response


def _refused(request: web.Request) -> str | None:
    """Why a request is refused; None if it is not.

    Any page that someone here has open may send requests to this address, and a name of its own may point to
    it; neither may see or ask anything.
    """
    if not _is_loopback(request.host):
        return "the console is reached by a loopback address or localhost only"
    site, mode = request.headers.get("Sec-Fetch-Site"), request.headers.get("Sec-Fetch-Mode")
    is_link = mode == "navigate" and request.method == "GET"  # which shows nothing to the site it is on
    if site not in {None, "same-origin", "none"} and not is_link:
        return "another site asks"
    origin = request.headers.get("Origin")
    if origin is not None and origin != f"{request.scheme}://{request.host}":
        return "another origin asks"
    if request.method == "POST" and request.content_type != "application/json":
        return "the content type is not application/json"
    return None


def _is_loopback(host: str) -> bool:
    name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


async def _file(name: str, request: web.Request) -> web.Response:
    body = files("gateway.console").joinpath(name).read_bytes()
    return web.Response(body=body, content_type=_FILES[name], charset="utf-8")


def _json(answer: Answer) -> web.Response:
    body = msgspec.json.encode(answer.content)
    return web.Response(status=answer.status, body=body, content_type="application/json")
