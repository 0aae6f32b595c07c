"""Starts, finds and stops the process that runs a gateway."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from gateway.background import start_in_background
from gateway.envoy.process import find_envoy, kill_envoy, stop_envoy
from gateway.errors import GatewayError
from gateway.place import Gateway
from handler.errors import LockError
from handler.locks import locked

READY = "ready"
_START_TIMEOUT_S = 60.0
_POLL_S = 0.1


def find_controller(gateway: Gateway) -> psutil.Process | None:
    """The running controller of a gateway, by whomever it was started."""
    if not gateway.controller_lock.exists():
        return None
    try:
        with locked(gateway.controller_lock):
            return None
    except LockError:
        with suppress(OSError, ValueError, psutil.Error):
            return psutil.Process(int(gateway.controller_lock.read_text()))
    return None


def start_gateway(gateway: Gateway) -> psutil.Process:
    """Start a gateway in the background; returns when clients can ask it.

    Raises:
        GatewayError: it cannot start; says why.
    """
    log = gateway.logs / "controller.log"
    hopserve = Path(sys.executable).with_name("hopserve")
    command: list[str | Path] = [hopserve, "gateway", "run", "--ts-config", gateway.properties.file]
    process = start_in_background(command, log)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while READY not in log.read_text(errors="replace").splitlines():
        if process.poll() is not None:
            lines = log.read_text(errors="replace").strip().splitlines()
            said = lines[-1].removeprefix("hopserve: ") if lines else f"{log} is empty"
            raise GatewayError(f"the gateway does not start: {said}")
        if time.monotonic() > deadline:
            process.terminate()
            raise GatewayError(f"the gateway is not ready after {_START_TIMEOUT_S:.0f} s; {log} says more")
        time.sleep(_POLL_S)
    return psutil.Process(process.pid)


def stop_gateway(gateway: Gateway, drain_timeout_s: float) -> bool:
    """Stop a gateway, once it has answered what it was asked; whether there was one.

    Raises:
        GatewayError: it is still answering when the time is up.
    """
    controller = find_controller(gateway)
    if controller is not None:
        with suppress(psutil.NoSuchProcess):
            controller.terminate()
            try:
                controller.wait(drain_timeout_s)
            except psutil.TimeoutExpired:
                raise GatewayError(
                    f"the gateway is still answering requests after {drain_timeout_s:.0f} s"
                ) from None
    left = find_envoy(gateway.files)
    if left is not None:
        stop_envoy(left, gateway.settings, drain_timeout_s)
    return controller is not None or left is not None


def kill_gateway(gateway: Gateway) -> None:
    """Stop a gateway at once; requests in flight get no answer."""
    controller = find_controller(gateway)
    if controller is not None:
        with suppress(psutil.Error):
            controller.kill()
            controller.wait(_START_TIMEOUT_S)
    left = find_envoy(gateway.files)
    if left is not None:
        kill_envoy(left)
