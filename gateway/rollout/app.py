"""The controller's own HTTP application: degraded answers, comparing, and what is going on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry

from gateway.degraded.server import degraded_app
from gateway.degraded.tables import LastAnswers
from gateway.rollout.comparing import Comparer
from gateway.rollout.observe import VersionName

_DEGRADED = "hopserve_degraded_answers"
_PRECOMPUTED = "precomputed"
_READY = "ready"
_SESSION = web.AppKey("session", aiohttp.ClientSession)


class ControllerApp:
    """What listens on the controller's port.

    Args:
        status: describes what is going on, as JSON.
        state: in a word, whether requests can be sent here: `ready`, or why not.
    """

    def __init__(
        self,
        last: LastAnswers,
        comparer: Comparer,
        status: Callable[[], Mapping[str, Any]],
        state: Callable[[], str],
    ) -> None:
        self._registry = CollectorRegistry()
        self._comparer = comparer
        self._status = status
        self._state = state
        self.app = degraded_app(last, registry=self._registry)
        self.app.cleanup_ctx.append(_session)
        self.app.router.add_post("/v1/{model}/predict", self._compare)
        self.app.router.add_get("/status", self._show)
        self.app.router.add_get("/ready", self._ready)

    def degraded(self) -> dict[VersionName, int]:
        """How many degraded answers were given with a good status, by model and version."""
        return {
            (sample.labels["model"], sample.labels["version"]): int(sample.value)
            for family in self._registry.collect()
            if family.name == _DEGRADED
            for sample in family.samples
            if sample.name.endswith("_total") and sample.labels.get("kind") == _PRECOMPUTED
        }

    async def _compare(self, request: web.Request) -> web.Response:
        """A copy of a client's request: nobody waits for the answer."""
        body = await request.read()
        await self._comparer.compare(request.app[_SESSION], request.match_info["model"], body)
        return web.Response(status=204)

    async def _show(self, request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self._status()), content_type="application/json")

    async def _ready(self, request: web.Request) -> web.Response:
        state = self._state()
        return web.json_response({"state": state}, status=200 if state == _READY else 503)


async def _session(app: web.Application) -> AsyncIterator[None]:
    async with aiohttp.ClientSession() as session:
        app[_SESSION] = session
        yield
