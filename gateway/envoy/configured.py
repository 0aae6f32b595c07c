"""An Envoy by the files that it is configured with, whatever they say."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.envoy import resources
from gateway.envoy.admin import Admin
from gateway.envoy.bootstrap import EnvoyFiles, render_bootstrap
from gateway.envoy.forms import Json
from gateway.envoy.metrics import Sources
from gateway.envoy.process import find_envoy, kill_envoy, start_envoy, stop_envoy, validate
from gateway.errors import GatewayError
from gateway.settings import EntranceSettings
from handler.graph.durable import replace_file

_TIMEOUT_S = 10.0
_MAX_LOG_BYTES = 100_000_000
_POLL_S = 0.01


class ConfiguredEnvoy:
    """The files of one Envoy, and the process that reads them.

    Args:
        files: where they are.
        sources: of metrics, beside Envoy itself.
    """

    def __init__(self, files: EnvoyFiles, settings: EntranceSettings, sources: Sources) -> None:
        self.files = files
        self._entrance = settings
        self._sources = sources

    def begin_files(self) -> None:
        """Write what Envoy is started with, in a folder that only its owner may read."""
        self.files.folder.mkdir(parents=True, exist_ok=True)
        self.files.folder.chmod(0o700)
        self.files.log.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.files.bootstrap, self._bootstrap())

    def validate(self, listener: Json, clusters: list[Json]) -> None:
        """Let Envoy check a configuration as a whole, before any of it is used.

        Raises:
            GatewayError: it refuses it; in its own words.
        """
        whole = render_bootstrap(self._entrance, self.files, self._sources)
        del whole["dynamic_resources"]
        static = whole.setdefault("static_resources", {})
        static["listeners"] = [*static.get("listeners", ()), listener]
        static["clusters"] = [*static.get("clusters", ()), *clusters]
        self.files.log.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="hopserve-") as folder:
            checked = Path(folder, "envoy.json")
            checked.write_bytes(resources.encoded(whole))
            validate(checked)

    def is_running(self) -> bool:
        """Whether an Envoy that was started with these files listens; not another one on the same port."""
        with Admin(self._entrance.admin_port) as admin:
            return admin.is_ready() and admin.configuration() == self.files.bootstrap

    def has_process(self) -> bool:
        """Whether there is a process that was started with these files."""
        return find_envoy(self.files) is not None

    def keep(self, drain_timeout_s: float) -> bool:
        """Whether the Envoy that runs can stay; one that would be started otherwise now is stopped."""
        running = find_envoy(self.files)
        if running is None:
            return False
        if self.is_started_alike():
            return True
        stop_envoy(running, self._entrance, drain_timeout_s)
        return False

    def start(self, console: Path) -> None:
        """Start it in the background; see `start_envoy`."""
        start_envoy(self.files, self._entrance, console)

    def stop(self, drain_timeout_s: float) -> None:
        """Stop it, if it runs; see `stop_envoy`."""
        running = find_envoy(self.files)
        if running is not None:
            stop_envoy(running, self._entrance, drain_timeout_s)

    def bound_log(self, admin: Admin) -> None:
        """Move a log of requests away that has become long."""
        log = self.files.log
        if log.exists() and log.stat().st_size > _MAX_LOG_BYTES:
            log.replace(log.with_suffix(".1.log"))
            admin.reopen_logs()

    def kill(self) -> None:
        """Stop it at once, if it runs, whatever it is at."""
        running = find_envoy(self.files)
        if running is not None:
            kill_envoy(running)

    def replace(self, admin: Admin, file: Path, wanted: list[Json], subscription: str) -> None:
        """Write a file, and wait until Envoy has read it.

        Args:
            subscription: as Envoy's statistics name it.

        Raises:
            GatewayError: Envoy refuses it, or does not say in time that it has.
        """
        rejected = f"{subscription}.update_rejected"
        num_rejected = admin.numbers(f"^{rejected}$").get(rejected, 0)
        version = resources.write(file, wanted)
        said = f"{subscription}.version_text"
        deadline = time.monotonic() + _TIMEOUT_S
        while admin.texts(f"^{said}$").get(said) != version:
            if admin.numbers(f"^{rejected}$").get(rejected, 0) > num_rejected:
                raise GatewayError(f"Envoy refuses {file}; its log says why")
            if time.monotonic() > deadline:
                raise GatewayError(f"Envoy has not read {file} after {_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)

    def is_started_alike(self) -> bool:
        """Whether an Envoy that was started with the files of before would be started so again."""
        try:
            return self.files.bootstrap.read_bytes() == self._bootstrap()
        except OSError:
            return False

    def _bootstrap(self) -> bytes:
        return resources.encoded(render_bootstrap(self._entrance, self.files, self._sources))
