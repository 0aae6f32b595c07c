"""Containers without Docker: the image's own steps and commands, in namespaces of their own.

Linux does for a container what is done here: other mounts, with a root file system that nobody may write to;
processes of its own, of which `hopserve` is the first; a network with only loopback; and a user without any
rights. What is missing are the image's own files: the system and Python's packages are this machine's.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest

from handler.graph.kernels import cache_root
from tests.deploy.dockerfile import Image, copied, read_image
from tests.deploy.promtool import DEPLOY

_ROOT = DEPLOY.parent
_UNSHARE = ["unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", "--kill-child=SIGKILL"]
_PROGRAM = "/opt/hopserve"
_PYTHON = f"{_PROGRAM}/venv/bin/python"
_NO_HOSTS: Mapping[str, Sequence[str]] = MappingProxyType({})


@cache
def _reason_against() -> str | None:
    if os.geteuid() != 0:
        return "only root may become another user, and make the file system read-only"
    if shutil.which("unshare") is None or shutil.which("nsenter") is None or shutil.which("setpriv") is None:
        return "util-linux is not installed"
    tried = subprocess.run(
        [*_UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
    )
    return f"namespaces are not allowed here: {tried.stderr.decode().strip()}" if tried.returncode else None


needs_namespaces = pytest.mark.skipif(_reason_against() is not None, reason=_reason_against() or "")


def build(folder: Path) -> Path:
    """Make what the image has in `/opt/hopserve`, without other people's packages; returns that folder."""
    program, build_folder = folder / "opt", folder / "build"
    program.mkdir(parents=True)
    for paths, target in copied():
        place = program / target.removeprefix(f"{_PROGRAM}/") if target.startswith(_PROGRAM) else build_folder
        for path in paths:
            if not target.startswith("/srv"):
                _copy(_ROOT / path, place / (Path(path).name if target.endswith("/") else target))
    script = f"""
        python={shlex.quote(sys.executable)}
        {_mounts(folder, program, folder / "data")}
        mount --bind {build_folder} /mnt
        "$python" -m venv --without-pip {_PROGRAM}/venv
        packages=$(echo {_PROGRAM}/venv/lib/python*/site-packages)
        echo {shlex.quote(_site_packages())} > "$packages/packages.pth"
        cd /mnt && {_PYTHON} -m pip install --quiet --no-deps --no-index --no-build-isolation \
          --disable-pip-version-check --root-user-action ignore .
    """
    (folder / "data").mkdir()
    done = subprocess.run([*_UNSHARE, "sh", "-euc", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return program


class Container:
    """A container of the image that runs, with a volume and settings.

    Args:
        folder: of the test; the volume is `data` in it, with what is there already.
        program: what `build` made.
        settings: files that are mounted over those of the volume, as Kubernetes mounts ConfigMaps.
        environment: beside the image's.
        command: the image's where none is given.
        hosts: addresses by the name that they have in it.
    """

    def __init__(
        self,
        folder: Path,
        program: Path,
        settings: Mapping[str, Path],
        environment: Mapping[str, str],
        command: Sequence[str] = (),
        hosts: Mapping[str, Sequence[str]] = _NO_HOSTS,
    ) -> None:
        self.image: Image = read_image()
        self.data = folder / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self._output = folder / "output"
        self._environment = {**self.image.environment, **environment}
        kernels = self.data / Path(self.image.environment["NUMBA_CACHE_DIR"]).relative_to(self.image.folder)
        if cache_root().is_dir():  # else it takes a minute longer
            shutil.copytree(cache_root(), kernels)
        shutil.chown(self.data, *self.image.user)
        for path in self.data.rglob("*"):
            shutil.chown(path, *self.image.user)
        script = f"""
            {_mounts(folder, program, self.data, settings)}
            {_named(folder, hosts)}
            {_empty_tmp()}
            {_READ_ONLY}
            cd {self.image.folder}
            exec {shlex.join([*self._as_user(), *(command or self.image.command)])}
        """
        with self._output.open("w") as output:
            self._outside = subprocess.Popen(
                [*_UNSHARE, "sh", "-euc", script],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        self.first = self._first_process()

    @property
    def output(self) -> str:
        """What it has printed."""
        return self._output.read_text()

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Begin a command in it, as `kubectl exec` and probes do."""
        enter = ["nsenter", f"--target={self.first.pid}", "--mount", "--pid", "--net"]
        inside = ["sh", "-c", f"cd {self.image.folder} && exec {shlex.join([*self._as_user(), *command])}"]
        return subprocess.Popen(
            [*enter, *inside], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/"
        )

    def run(self, *command: str, timeout_s: float = 60) -> tuple[int, str]:
        """Run a command in it; its exit status, and what it printed."""
        process = self.start(*command)
        printed, _ = process.communicate(timeout=timeout_s)
        return process.returncode, printed

    def python(self, code: str) -> str:
        """Run Python in it, which must succeed; returns what it prints."""
        status, printed = self.run("python", "-c", textwrap.dedent(code))
        assert status == 0, printed
        return printed

    def terminate(self, timeout_s: float) -> int:
        """Ask it to stop, as Kubernetes does; its exit status."""
        self.first.send_signal(signal.SIGTERM)
        return self._outside.wait(timeout_s)

    def kill(self) -> None:
        """End whatever is left of it."""
        with suppress(psutil.NoSuchProcess):
            self.first.kill()
        self._outside.kill()
        self._outside.wait(30)

    def until(self, holds: Callable[[], bool], timeout_s: float, every_s: float = 0.2) -> None:
        """Wait until something holds; fails when it ends before, or the time is up."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert self._outside.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(every_s)

    def _as_user(self) -> list[str]:
        user, group = self.image.user
        rights = [f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs"]
        variables = [f"{name}={value}" for name, value in self._environment.items()]
        return ["setpriv", *rights, "--inh-caps=-all", "--bounding-set=-all", "env", "-i", *variables]

    def _first_process(self) -> psutil.Process:
        """The one that is process 1 inside, once it is the command."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self._outside.poll() is None:
            for process in psutil.Process(self._outside.pid).children():
                if process.uids().real == self.image.user[0]:
                    return process
            time.sleep(0.05)
        self._outside.kill()
        raise AssertionError(self.output)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def _site_packages() -> str:
    return str(Path(psutil.__file__).parents[1])


def _mounts(folder: Path, program: Path, data: Path, settings: Mapping[str, Path] | None = None) -> str:
    """Shell that mounts the program and the volume, and lets everybody reach Python, wherever it is."""
    lines = [
        "mount -t tmpfs -o mode=755 none /opt",
        "mount -t tmpfs -o mode=755 none /srv",
        f"mkdir {_PROGRAM} /srv/hopserve",
        f"mount --bind {program} {_PROGRAM}",
        f"mount --bind {data} /srv/hopserve",
    ]
    for name, file in (settings or {}).items():
        lines += [f"touch /srv/hopserve/{name}", f"mount --bind {file} /srv/hopserve/{name}"]
        lines += [f"mount -o remount,bind,ro /srv/hopserve/{name}"]
    lines += _reachable(_python(), folder / "held")
    return "\n".join([*lines, f"{shlex.quote(sys.executable)} -c {shlex.quote(_LOOPBACK_UP)}"])


def _named(folder: Path, hosts: Mapping[str, Sequence[str]]) -> str:
    """Shell that lets names stand for addresses."""
    lines = [f"{address} {name}\n" for name, addresses in hosts.items() for address in addresses]
    file = folder / "hosts"
    file.write_text("".join(["127.0.0.1 localhost\n", *lines]))
    return f"mount --bind {file} /etc/hosts"


def _python() -> set[Path]:
    """Where this Python and its packages are."""
    return {Path(sys.base_prefix), Path(sys.prefix)}


def _empty_tmp() -> str:
    """Shell that mounts an empty `/tmp`, in which only Python is left, if it is there."""
    hold, show = [], []
    for number, folder in enumerate(sorted(each for each in _python() if each.is_relative_to("/tmp"))):
        hold += [f"mkdir -p /opt/held/{number}", f"mount --bind {folder} /opt/held/{number}"]
        show += [f"mkdir -p {folder}", f"mount --bind /opt/held/{number} {folder}"]
    return "\n".join([*hold, "mount -t tmpfs -o mode=1777 none /tmp", *show])


def _reachable(wanted: set[Path], held: Path) -> list[str]:
    """Shell by which folders that lie in one of root's own can be reached by others, too."""
    hold, hide, show = [], [], []
    for number, folder in enumerate(sorted(wanted)):
        closed = [parent for parent in reversed(folder.parents) if not parent.stat().st_mode & 0o001]
        if closed:
            hold += [f"mkdir -p {held}/{number}", f"mount --bind {folder} {held}/{number}"]
            hide += [f"mount -t tmpfs -o mode=755 none {closed[0]}"]
            show += [f"mkdir -p {folder}", f"mount --bind {held}/{number} {folder}"]
    return [*hold, *dict.fromkeys(hide), *show]


# Nothing but the volume and /tmp may be written to; devices and /proc are no files.
_READ_ONLY = """
while read -r _ where kind _; do
  case "$where" in
    /srv/hopserve | /tmp | /proc | /proc/* | /dev | /dev/* | /sys | /sys/*) ;;
    *) mount -o remount,bind,ro "$where" 2> /dev/null || true ;;
  esac
done < /proc/self/mounts
"""
# SIOCGIFFLAGS and SIOCSIFFLAGS, and IFF_UP: not everybody has `ip`.
_LOOPBACK_UP = (
    "import fcntl, socket, struct; s = socket.socket(); "
    "f = struct.unpack('16sh', fcntl.ioctl(s, 0x8913, struct.pack('16sh', b'lo', 0)))[1]; "
    "fcntl.ioctl(s, 0x8914, struct.pack('16sh', b'lo', f | 1))"
)
