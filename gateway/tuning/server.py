"""A TorchServe of one's own for a while, on free ports and in a folder that is removed."""

from __future__ import annotations

import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import javaproperties

from gateway.errors import UpstreamError
from gateway.upstream.process import find_server, kill_server, start_server, wait_until_ready
from gateway.upstream.properties import ServerProperties, read_properties

_LOOPBACK = "127.0.0.1"
_ADDRESSES = ("inference_address", "management_address", "metrics_address")
_GRPC = ("grpc_inference", "grpc_management")
_STORE = "model_store"
_OWN = {
    "enable_model_api": "true",
    "model_store": _STORE,
    "load_models": "all",
    "allowed_urls": f"file://{_STORE}/.*",
}
_TIMEOUT_S = 120.0


@contextmanager
def own_server(like: ServerProperties) -> Iterator[ServerProperties]:
    """A running server without models, until the end of the block, however that comes.

    Args:
        like: a server, running or not, whose configuration this one has but for where it listens and what
            it loads.

    Raises:
        UpstreamError: it does not start.
    """
    with TemporaryDirectory(prefix="hopserve-tune-") as temporary:
        properties = write_properties(like, Path(temporary))
        try:
            server = start_server(properties, [], Path(temporary) / "tmp")
            wait_until_ready(server, properties, [], _TIMEOUT_S)
            yield properties
        finally:
            with _undisturbed():
                # Looked for: an interrupt may have come before we were told the process.
                left = find_server(properties)
                if left is not None:
                    kill_server(left)


def write_properties(like: ServerProperties, folder: Path) -> ServerProperties:
    """Write a server's configuration into a folder, with free ports and an empty model store.

    Raises:
        UpstreamError: it cannot be read or written.
    """
    try:
        with like.file.open(encoding="utf-8") as lines:
            values = javaproperties.load(lines)
        ports = free_ports(len(_ADDRESSES) + len(_GRPC))
        values |= {name: f"http://{_LOOPBACK}:{ports.pop()}" for name in _ADDRESSES}
        for name in _GRPC:
            values |= {f"{name}_address": _LOOPBACK, f"{name}_port": str(ports.pop())}
        (folder / _STORE).mkdir(parents=True)
        # Not by javaproperties, which escapes colons: TorchServe's launcher reads `vmargs` as they stand.
        written = [f"{name}={value}\n" for name, value in (values | _OWN).items()]
        (folder / "config.properties").write_text("".join(written), encoding="utf-8")
        if (deploy := like.file.parent / "deploy").is_dir():  # which the configuration names by this path
            shutil.copytree(deploy, folder / "deploy")
    except (OSError, ValueError) as error:
        raise UpstreamError(f"{like.file}: cannot be copied to {folder}: {error}") from None
    return read_properties(folder / "config.properties")


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    with ExitStack() as reserved:
        probes = [reserved.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind((_LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in probes]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No second interrupt keeps what the first one began from being finished."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
