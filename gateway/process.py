"""Starts, finds and stops the process that runs a gateway, or a balancer."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import psutil

from gateway.background import has_ended, start_in_background
from gateway.envoy.configured import ConfiguredEnvoy
from gateway.errors import GatewayError
from handler.errors import LockError
from handler.locks import locked

READY = "ready"
_START_TIMEOUT_S = 60.0
_POLL_S = 0.1


class Place(Protocol):
    """What a process runs together with an Envoy: a `Gateway` or a `Balancer`."""

    @property
    def title(self) -> str: ...

    @property
    def command(self) -> list[str]: ...

    @property
    def log(self) -> Path: ...

    @property
    def lock(self) -> Path: ...

    @property
    def url(self) -> str: ...

    @property
    def control(self) -> ConfiguredEnvoy: ...


def find_controller(place: Place) -> psutil.Process | None:
    """The running process of a gateway, by whomever it was started."""
    if not place.lock.exists():
        return None
    try:
        with locked(place.lock):
            return None
    except LockError:
        with suppress(OSError, ValueError, psutil.Error):
            return psutil.Process(int(place.lock.read_text()))
    return None


def start_gateway(place: Place) -> psutil.Process:
    """Start a gateway in the background; returns when clients can ask it.

    Raises:
        GatewayError: it cannot start; says why.
    """
    hopserve = Path(sys.executable).with_name("hopserve")
    process = start_in_background([hopserve, *place.command], place.log)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while READY not in place.log.read_text(errors="replace").splitlines():
        if process.poll() is not None:
            lines = place.log.read_text(errors="replace").strip().splitlines()
            said = lines[-1].removeprefix("hopserve: ") if lines else f"{place.log} is empty"
            raise GatewayError(f"{place.title} does not start: {said}")
        if time.monotonic() > deadline:
            process.terminate()
            raise GatewayError(
                f"{place.title} is not ready after {_START_TIMEOUT_S:.0f} s; {place.log} says more"
            )
        time.sleep(_POLL_S)
    return psutil.Process(process.pid)


def stop_gateway(place: Place, drain_timeout_s: float) -> bool:
    """Stop a gateway, once it has answered what it was asked; whether there was one.

    Raises:
        GatewayError: it is still answering when the time is up.
    """
    controller = find_controller(place)
    if controller is not None:
        with suppress(psutil.NoSuchProcess):
            controller.terminate()
        if not has_ended(controller, drain_timeout_s):
            raise GatewayError(f"{place.title} is still answering requests after {drain_timeout_s:.0f} s")
    left = place.control.has_process()
    place.control.stop(drain_timeout_s)
    return controller is not None or left


def kill_gateway(place: Place) -> None:
    """Stop a gateway at once; requests in flight get no answer."""
    controller = find_controller(place)
    if controller is not None:
        with suppress(psutil.Error):
            controller.kill()
        has_ended(controller, _START_TIMEOUT_S)
    place.control.kill()
