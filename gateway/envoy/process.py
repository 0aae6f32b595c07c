"""Starts and stops an Envoy process."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import envoy
import psutil

from gateway.background import start_in_background
from gateway.envoy.admin import Admin
from gateway.envoy.bootstrap import EnvoyFiles
from gateway.errors import GatewayError
from gateway.settings import EntranceSettings

_BINARY = Path(envoy.__file__).parent / "_bin" / "envoy"
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0
_DRAIN_S = 1
_IDLE_S = 3.0
_POLL_S = 0.05


def find_envoy(files: EnvoyFiles) -> psutil.Process | None:
    """The running Envoy that was started with these files, by whomever."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.name() == _BINARY.name and str(files.bootstrap) in process.cmdline():
                return process
    return None


def validate(configuration: Path) -> None:
    """Let Envoy check a configuration, without what it would read from further files.

    Raises:
        GatewayError: it refuses it; in its own words.
    """
    checked = subprocess.run(
        [_BINARY, "--mode", "validate", "-c", configuration, "--log-level", "error"],
        capture_output=True,
        text=True,
        check=False,
    )
    if checked.returncode:
        said = (checked.stdout + checked.stderr).strip().splitlines()
        raise GatewayError(f"Envoy refuses its configuration: {said[-1] if said else 'without a reason'}")


def start_envoy(files: EnvoyFiles, settings: EntranceSettings, console: Path) -> psutil.Process:
    """Start Envoy in the background; returns when it listens.

    Args:
        console: to which it writes warnings.

    Raises:
        GatewayError: an address is taken, or it refuses its configuration.
    """
    command: list[str | Path] = [_BINARY, "-c", files.bootstrap, "--log-level", "warning"]
    command += ["--concurrency", str(settings.threads or max(1, (os.cpu_count() or 1) // 2))]
    command += ["--disable-hot-restart", "--drain-time-s", str(_DRAIN_S), "--drain-strategy", "immediate"]
    started = start_in_background(command, console)
    deadline = time.monotonic() + _START_TIMEOUT_S
    with Admin(settings.admin_port) as admin:
        while not _is_listening(admin, files, settings):
            if started.poll() is not None or time.monotonic() > deadline:
                started.kill()
                started.wait()
                raise GatewayError(f"Envoy does not start: {_reason(console)}")
            time.sleep(_POLL_S)
    return psutil.Process(started.pid)


def stop_envoy(process: psutil.Process, settings: EntranceSettings, drain_timeout_s: float) -> None:
    """Stop Envoy, once it has answered all that it was asked.

    Raises:
        GatewayError: it is still answering when the time is up; then it takes no more, but goes on.
    """
    deadline = time.monotonic() + drain_timeout_s
    with Admin(settings.admin_port) as admin:
        try:
            admin.drain()
        except GatewayError:  # it does not even listen
            kill_envoy(process)
            return
        time.sleep(_DRAIN_S)  # until then clients may still come
        # Each connection is closed behind its next answer. One that asks nothing more is not waited for long.
        idle_s = time.monotonic() + _IDLE_S
        while admin.num_active() or (admin.num_connections() and time.monotonic() < min(idle_s, deadline)):
            if time.monotonic() > deadline:
                raise GatewayError(f"the gateway is still answering requests after {drain_timeout_s:.0f} s")
            time.sleep(_POLL_S)
        admin.quit()
    with suppress(psutil.Error):
        process.wait(_STOP_TIMEOUT_S)
    kill_envoy(process)


def kill_envoy(process: psutil.Process) -> None:
    """Stop Envoy at once, whatever it is at."""
    with suppress(psutil.Error):
        process.kill()
        process.wait(_STOP_TIMEOUT_S)


def _is_listening(admin: Admin, files: EnvoyFiles, settings: EntranceSettings) -> bool:
    if not admin.is_ready() or admin.configuration() != files.bootstrap:
        return False
    counts = admin.numbers("^listener_manager\\.(total_listeners_active|lds\\.update_rejected)$")
    num_others = 0 if settings.metrics is None else 1  # that of metrics comes first
    return counts.get("listener_manager.total_listeners_active", 0) > num_others


def _reason(console: Path) -> str:
    lines = [line for line in console.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"{console} is empty"
