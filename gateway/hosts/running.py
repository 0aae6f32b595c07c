"""Runs a balancer: Envoy, and this process beside it, which tells it what has changed."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from gateway.duties import Duties
from gateway.envoy.admin import Admin
from gateway.errors import GatewayError
from gateway.hosts.place import Balancer
from handler.errors import LockError
from handler.locks import locked

_UPKEEP_S = 1.0
_DRAIN_TIMEOUT_S = 30.0
_log = logging.getLogger(__name__)


async def run_balancer(balancer: Balancer, stopping: asyncio.Event, ready: Callable[[], None]) -> None:
    """Run Envoy until `stopping` is set; then stop it, once it has answered everything.

    An Envoy that runs already, because this process was killed, is taken over. Hosts and keys that change in
    their files are told to Envoy, and need no other start.

    Args:
        ready: called once clients can ask.

    Raises:
        GatewayError: one runs already, an address is taken, or Envoy cannot start.
    """
    balancer.folder.mkdir(parents=True, exist_ok=True)
    duties = Duties()
    try:
        with locked(balancer.lock):
            balancer.lock.write_text(f"{os.getpid()}\n")
            await asyncio.to_thread(_start, balancer)
            duties.begin((lambda: _keep_up(balancer, duties), _UPKEEP_S))
            ready()
            await stopping.wait()
            duties.end()
            await asyncio.to_thread(balancer.control.stop, _DRAIN_TIMEOUT_S)
    except LockError:
        holder = balancer.lock.read_text().strip()
        raise GatewayError(f"a balancer runs already, as process {holder}") from None
    finally:
        duties.end()


def _start(balancer: Balancer) -> None:
    control, api_keys, host_key = balancer.control, balancer.api_keys(), balancer.host_key()
    if control.keep(_DRAIN_TIMEOUT_S):
        control.update(api_keys, host_key)
        return
    control.check(api_keys, host_key)
    control.write_all(api_keys, host_key)
    control.start(balancer.envoy_log)


def _keep_up(balancer: Balancer, duties: Duties) -> None:
    current = Balancer.of(balancer.file)
    if not current.control.has_process() and not duties.is_ended:
        _log.error("Envoy has ended, and is started again")
        _start(current)
    elif not current.control.is_started_alike():
        raise GatewayError(f"{balancer.file} says what only another start can change")
    if current.control.update(current.api_keys(), current.host_key()):
        _log.warning("hosts or keys have changed")
    with Admin(balancer.settings.admin_port) as admin:
        current.control.bound_log(admin)
