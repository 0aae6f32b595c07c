"""What is done on all hosts: one after the other, so that the others answer meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gateway.envoy.admin import Admin
from gateway.envoy.hosts import HOSTS
from gateway.errors import GatewayError
from gateway.hosts.place import Balancer
from gateway.hosts.remote import HostError, Remote
from gateway.rollout.manifest import Model
from gateway.upstream.store import read_archive

Report = Callable[[str], None]
_READY_TIMEOUT_S = 400.0
_POLL_S = 0.5
_FOLLOW_S = 3.0
# A host that is told twice by the balancer's looks at it gets no more requests.
_LOOKS = 3


class Fleet:
    """All hosts of a balancer.

    Args:
        report: told of each step.
        follow_s: between looks at rollouts that are on.
    """

    def __init__(self, balancer: Balancer, report: Report, follow_s: float = _FOLLOW_S) -> None:
        self._balancer = balancer
        self._report = report
        self._follow_s = follow_s
        self._remotes = [Remote(host) for host in balancer.settings.hosts]

    def each(self, arguments: Sequence[str], *, regardless: bool = False) -> list[tuple[str, str]]:
        """Run a command of `hopserve` on each host; returns what they print, by name.

        Args:
            regardless: whether it goes on after a host that fails; else those behind it are left alone.

        Raises:
            HostError: a host could not.
        """
        done: list[tuple[str, str]] = []
        failures: list[str] = []
        for remote in self._remotes:
            try:
                done.append((remote.name, remote.run(*arguments)))
            except HostError as error:
                failures.append(str(error))
                if not regardless:
                    break
        if failures:
            others = f" (done by {_names(done)})" if done else ""
            raise HostError("; ".join(failures) + others)
        return done

    def register(self, archive: str) -> str:
        """Load an archive on each host, one after the other; those that have it already are left alone.

        Args:
            archive: a file here, which is sent to every host, or the name of one in each model store.

        Returns its version.

        Raises:
            HostError: a host is not ready, or cannot load it: those before it have it, without traffic.
            UpstreamError: the file is no archive.
        """
        file = Path(archive)
        name = file.name
        sent = read_archive(file) if file.is_file() else None
        if sent is None and name != archive:
            raise GatewayError(f"{archive}: there is no such file")
        self.check_ready()
        version = ""
        for remote in self._remotes:
            if sent is not None:
                self._report(f"{remote.name}: sending {name}")
                remote.run("models", "put", name, send=file)
            known = _registered(remote.models(), name)
            if known is None:
                self._report(f"{remote.name}: loading {name}")
                remote.run("rollout", "register", name)
                self._wait_until_ready(remote)
                known = _registered(remote.models(), name)
            else:
                self._report(f"{remote.name}: has {name} already")
            version = known or version
        return version

    def start(self, arguments: Sequence[str], model: str) -> None:
        """Begin the same rollout on each host; where one cannot, it is taken back on those that have begun.

        Raises:
            HostError: a host could not.
        """
        begun: list[Remote] = []
        for remote in self._remotes:
            try:
                self._report(f"{remote.name}: {remote.run('rollout', 'start', *arguments).strip()}")
            except HostError as error:
                self._take_back(begun, model, f"{error}")
                raise
            begun.append(remote)

    def follow(self, model: str) -> bool:
        """Watch the rollouts of a model until none is on; whether all of them were completed.

        Each host judges by its own requests. What one has taken back is taken back on all.

        Raises:
            HostError: a host does not say how its rollout is; the others go on by themselves.
        """
        said: dict[str, str] = {}
        while True:
            seen = {remote.name: remote.models().get(model, Model()) for remote in self._remotes}
            for name, state in seen.items():
                now = _in_words(state)
                if said.get(name) != now:
                    self._report(f"{name}: {now}")
                    said[name] = now
            back = [name for name, state in seen.items() if _went_back(state)]
            if back:
                others = [remote for remote in self._remotes if remote.name not in back]
                rollout = seen[back[0]].rollout
                reason = f"{back[0]} took it back: {rollout.reason if rollout is not None else ''}"
                self._take_back([each for each in others if _can_go_back(seen[each.name])], model, reason)
                return False
            if not any(state.rollout is not None and state.rollout.is_active for state in seen.values()):
                return True
            time.sleep(self._follow_s)

    def restart(self, drain_timeout_s: float) -> None:
        """Stop and start each host, one after the other: while one is away, the others answer.

        Raises:
            HostError: a host does not stop in time or does not come back; those after it are left alone.
        """
        self.check_ready()
        at_least_s = self._balancer.settings.health_s * _LOOKS
        for remote in self._remotes:
            self._report(f"{remote.name}: waiting for requests in flight")
            remote.run("drain", "--at-least-s", f"{at_least_s:g}", "--timeout-s", f"{drain_timeout_s:g}")
            self._report(f"{remote.name}: stopping")
            remote.run("stop", "--drain-timeout-s", f"{drain_timeout_s:g}")
            self._report(f"{remote.name}: starting")
            remote.run("serve", "--detach")
            self._wait_until_ready(remote)
            self._report(f"{remote.name}: is ready again")

    def check_ready(self) -> None:
        """Raises `HostError` unless every host can be sent requests, also as the balancer sees it."""
        for remote in self._remotes:
            remote.run("ready")
        waited_for = [remote.name for remote in self._remotes if not self._is_seen_ready(remote)]
        if waited_for:
            raise HostError(f"the balancer does not see that {', '.join(waited_for)} can be sent requests")

    def _wait_until_ready(self, remote: Remote) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while True:
            try:
                remote.run("ready")
                if self._is_seen_ready(remote):
                    return
                reason = f"{remote.name}: the balancer does not see that it is ready"
            except HostError as error:
                reason = str(error)
            if time.monotonic() > deadline:
                raise HostError(f"{reason}, after {_READY_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)

    def _is_seen_ready(self, remote: Remote) -> bool:
        """Whether the balancer of this machine sends requests there; without one, the host's word counts."""
        with Admin(self._balancer.settings.admin_port) as admin:
            if not admin.is_answering():
                return True
            host = remote.host.address.rpartition(":")[0]
            states = {
                each.state
                for each in admin.endpoints(HOSTS)
                if each.address == remote.host.address or each.name == host
            }
        return "ready" in states

    def _take_back(self, remotes: Iterable[Remote], model: str, reason: str) -> None:
        failures = []
        for remote in remotes:
            self._report(f"{remote.name}: taking it back")
            try:
                remote.run("rollout", "rollback", "--model", model, "--reason", reason)
            except HostError as error:
                failures.append(str(error))
        if failures:
            raise HostError("; ".join(failures))


def _names(done: Sequence[tuple[str, str]]) -> str:
    return ", ".join(name for name, _ in done)


def _registered(models: dict[str, Model], archive: str) -> str | None:
    """The version of an archive that is registered."""
    return next(
        (
            version.version
            for model in models.values()
            for version in model.versions
            if version.archive == archive and version.state == "ready"
        ),
        None,
    )


def _went_back(model: Model) -> bool:
    """Whether its last rollout has not come where it should."""
    rollout = model.rollout
    if rollout is None or rollout.is_active:
        return False
    return model.weights.get(rollout.candidate, 0) < rollout.steps[-1]


def _can_go_back(model: Model) -> bool:
    return model.rollout is not None and not _went_back(model)


def _in_words(model: Model) -> str:
    rollout = model.rollout
    if rollout is None:
        return "no rollout"
    share = model.weights.get(rollout.candidate, 0) / 100
    if rollout.is_active:
        return f"{rollout.candidate} at {share:g}%, step {rollout.step + 1} of {len(rollout.steps)}"
    how = "went back" if _went_back(model) else f"done at {share:g}%"
    return f"{rollout.candidate} {how}: {rollout.reason}"
