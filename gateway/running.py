"""Runs the gateway of one TorchServe: Envoy, and the controller that this process is."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from gateway import readiness
from gateway.autoscale.autoscaler import Autoscaler
from gateway.console.app import PREFIX, Console
from gateway.console.sampling import SAMPLE_S
from gateway.degraded.tables import LastAnswers
from gateway.duties import Duties
from gateway.envoy.admin import Admin
from gateway.envoy.forms import LOOPBACK
from gateway.errors import GatewayError, UpstreamError
from gateway.place import Gateway
from gateway.rollout.app import ControllerApp
from gateway.rollout.comparing import Comparer
from gateway.rollout.controller import Controller
from gateway.rollout.reconcile import Reconciler
from gateway.upstream.tokens import Tokens
from handler.errors import LockError
from handler.locks import locked
from handler.settings import GRAPH_VARIABLE

_TICK_S = 0.25
_KEY_S = 0.02  # who renews a key lets requests fail until Envoy knows the new one, and they are tried again
_UPKEEP_S = 2.0
_SCALE_S = 1.0
_LOOK_S = 1.0
_DRAIN_TIMEOUT_S = 30.0
# Renewed well before those who renew theirs a minute before the end: an old key dies at once, for everyone.
_RENEWED_BEFORE_S = 300.0
_log = logging.getLogger(__name__)


async def run_gateway(gateway: Gateway, stopping: asyncio.Event, ready: Callable[[], None]) -> None:
    """Run the controller and Envoy until `stopping` is set; then stop Envoy, once it has answered everything.

    An Envoy that runs already, because its controller was killed, is taken over.

    Args:
        ready: called once clients can ask.

    Raises:
        GatewayError: another controller runs, an address is taken, or Envoy cannot start.
    """
    gateway.folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(gateway.lock):
            gateway.lock.write_text(f"{os.getpid()}\n")
            await _Running(gateway).run(stopping, ready)
    except LockError:
        holder = gateway.lock.read_text().strip()
        raise GatewayError(f"a controller runs already, as process {holder}") from None


class _Running:
    """One run of the controller."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._settings = gateway.settings
        registry = gateway.registry(_log.warning)
        self._reconciler = Reconciler(gateway.rollouts, registry, gateway.properties)
        self._comparer = Comparer(gateway.properties)
        graph = os.environ.get(GRAPH_VARIABLE)
        last = LastAnswers(gateway.properties, graph=Path(graph) if graph else None)
        self._served = ControllerApp(last, self._comparer, self._status, self._state)
        self._admin = Admin(gateway.settings.admin_port)
        self._console = Console.of(
            gateway.rollouts, self._admin, gateway.properties, self._status, self._served.degraded
        )
        self._served.app.add_subapp(PREFIX, self._console.app)
        self._controller = Controller(
            gateway.rollouts,
            self._admin,
            gateway.settings.rollout,
            self._served.degraded,
            self._compare,
        )
        self._autoscaler = Autoscaler(gateway.properties, gateway.settings.autoscale)
        self._tokens = Tokens(gateway.properties, renewed_before_s=_RENEWED_BEFORE_S)
        self._key: str | None = None
        self._api_keys: dict[str, str] = {}
        self._duties = Duties()
        self._readiness = readiness.Readiness("loading")

    async def run(self, stopping: asyncio.Event, ready: Callable[[], None]) -> None:
        await asyncio.to_thread(self._look_first)
        runner = web.AppRunner(self._served.app, access_log=None, shutdown_timeout=5)
        await runner.setup()
        try:
            await self._listen(runner)
            await asyncio.to_thread(self._start_envoy)
            self._duties.begin(
                (self._renew_key, _KEY_S),
                (self._tick, _TICK_S),
                (self._keep_up, _UPKEEP_S),
                (self._scale, _SCALE_S),
                (self._look, _LOOK_S),
                (self._console.sample, SAMPLE_S),
            )
            ready()
            await stopping.wait()
            self._duties.end()
            await asyncio.to_thread(self._stop_envoy)
        finally:
            self._duties.end()
            await runner.cleanup()
            self._admin.close()

    def _look_first(self) -> None:
        self._look()
        try:
            self._reconciler.reconcile()
        except UpstreamError as error:  # there may be degraded answers
            _log.error("%s", error)

    async def _listen(self, runner: web.AppRunner) -> None:
        port = self._settings.controller_port
        try:
            await web.TCPSite(runner, LOOPBACK, port).start()
        except OSError as error:
            raise GatewayError(f"{LOOPBACK}:{port} cannot be listened on: {error.strerror}") from None

    def _start_envoy(self) -> None:
        """Start Envoy, or take over the one that runs; what its configuration says by now is told to both."""
        gateway = self._gateway
        control = gateway.control
        self._key = self._find_key()
        self._api_keys = gateway.api_keys()
        if control.keep(_DRAIN_TIMEOUT_S):
            control.write_key(self._key)
            control.write_listener(self._api_keys)
            gateway.rollouts.carry_out()
            return
        traffic = gateway.rollouts.traffic()
        control.write_all(traffic, self._api_keys, self._key)
        control.check(traffic, self._api_keys)
        control.start(gateway.envoy_log)

    def _stop_envoy(self) -> None:
        self._gateway.control.stop(_DRAIN_TIMEOUT_S)

    def _tick(self) -> None:
        """What cannot wait."""
        self._controller.tick()

    def _keep_up(self) -> None:
        """What can."""
        gateway = self._gateway
        if not gateway.control.has_process() and not self._duties.is_ended:
            _log.error("Envoy has ended, and is started again")
            self._start_envoy()
        gateway.rollouts.carry_out()
        api_keys = gateway.api_keys()
        if api_keys != self._api_keys:
            gateway.control.write_listener(api_keys)
            self._api_keys = api_keys
            _log.warning("the keys of clients have changed")
        gateway.control.bound_log(self._admin)
        for done in [*self._reconciler.reconcile(), *self._reconciler.load_missing()]:
            _log.warning("%s", done)

    def _scale(self) -> None:
        for look in self._autoscaler.tick():
            if look.is_change:
                _log.warning("%s", look)

    def _look(self) -> None:
        """Whether requests may be sent here; Envoy itself shows that it listens."""
        self._readiness = readiness.look(self._gateway, with_gateway=False)

    def _state(self) -> str:
        return "draining" if readiness.is_draining(self._gateway) else self._readiness.kind

    def _renew_key(self) -> None:
        """Tell Envoy of a new key, be it that the old one runs out, or that someone else has renewed it."""
        key = self._find_key()
        if key != self._key:
            self._gateway.control.write_key(key)
            self._key = key

    def _find_key(self) -> str | None:
        """TorchServe's; while it is not there, one that it will refuse."""
        if not self._gateway.properties.token_auth:
            return None
        try:
            return self._tokens.get("inference")
        except UpstreamError:
            return self._key or "none"

    def _compare(self, active: Mapping[str, Any]) -> None:
        self._comparer.active = active

    def _status(self) -> dict[str, Any]:
        """What is going on, for people and for `hopserve rollout status`."""
        decisions = {
            name: {"action": decision.action, "reason": decision.reason}
            for name, decision in list(self._controller.decisions.items())
        }
        return {"pid": os.getpid(), "decisions": decisions, "problems": self._duties.problems}
