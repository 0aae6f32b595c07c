"""How the state of a model changes: each change a function from the old state to the new.

All take the time, which they note, and raise `RolloutError` where the change makes no sense; nothing else is
looked at or touched here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from gateway.errors import RolloutError
from gateway.rollout.manifest import Event, Model, Rollout, Version, VersionState
from gateway.traffic import WHOLE

_replace = msgspec.structs.replace


def register(model: Model, version: Version) -> Model:
    """A version begins to load; one that was retired or is missing may come again.

    Raises:
        RolloutError: it is there already.
    """
    known = model.find(version.version)
    if known is not None and known.state in {"loading", "ready"}:
        raise RolloutError(f"version {version.version} is registered already")
    return _noted(_placed(model, version), version.registered_at, "registered", version.version)


def become(model: Model, version: str, state: VersionState, at: datetime, reason: str = "") -> Model:
    """A version is in another state; the first that is ready gets all traffic."""
    known = _known(model, version)
    if known.state == state:
        return model
    changed = _with_version(model, _replace(known, state=state))
    if state == "ready" and not changed.weights:
        changed = _with_weights(changed, {version: WHOLE})
    return _noted(changed, at, state, version, reason)


def forget(model: Model, version: str, at: datetime, reason: str) -> Model:
    """A version that could not be loaded is not there."""
    changed = _replace(model, versions=tuple(known for known in model.versions if known.version != version))
    return _noted(changed, at, "failed", version, reason)


def start(
    model: Model,
    version: str,
    steps: Sequence[int],
    every_s: float,
    at: datetime,
    shadow_share: float = 0.0,
) -> Model:
    """A version begins to take traffic.

    Args:
        steps: weights of the version, one after the other, each above the last.
        every_s: how long each step lasts at least.
        shadow_share: of the requests, copies of which it gets in a step before all others.

    Raises:
        RolloutError: it is not ready, has all traffic already, or another rollout is on.
    """
    known = _known(model, version)
    if known.state != "ready":
        raise RolloutError(f"version {version} is not ready: it is {known.state}")
    if model.rollout is not None and model.rollout.is_active:
        raise RolloutError(
            f"the rollout of {model.rollout.candidate} is {model.rollout.phase}:"
            " promote it or roll it back first"
        )
    others = {name: weight for name, weight in model.weights.items() if name != version}
    if not others:
        raise RolloutError(f"version {version} has all traffic already")
    ahead = tuple(step for step in steps if step > known.weight)
    if known.weight == 0 and (shadow_share > 0 or not ahead):
        ahead = (0, *ahead)
    if not ahead or list(ahead) != sorted(set(ahead)) or ahead[-1] > WHOLE:
        raise RolloutError(f"the steps must grow, from more than what version {version} has now up to 100%")
    last = model.rollout
    # Further steps of the same version: what it took last time is no state to go back to.
    goes_on = last is not None and last.candidate == version and known.weight > 0
    rollout = Rollout(
        candidate=version,
        before=last.before if last is not None and goes_on else model.weights,
        steps=ahead,
        every_s=every_s,
        shadow_share=shadow_share,
        step_began=at,
    )
    return _noted(_at_step(_replace(model, rollout=rollout)), at, "started", version)


def advance(model: Model, at: datetime, reason: str) -> Model:
    """The next step of a rollout; after the last it is done."""
    rollout = _active(model)
    if rollout.is_last_step:
        changed = _replace(model, rollout=_replace(rollout, phase="done", reason=reason))
        what = "promoted" if rollout.steps[-1] == WHOLE else "completed"
        return _noted(changed, at, what, rollout.candidate, reason)
    following = _replace(rollout, step=rollout.step + 1, step_began=at, reason=reason)
    return _noted(_at_step(_replace(model, rollout=following)), at, "advanced", rollout.candidate, reason)


def promote(model: Model, at: datetime, reason: str) -> Model:
    """All traffic for the candidate, at once.

    Raises:
        RolloutError: there is no rollout, or it went back.
    """
    rollout = model.rollout
    if rollout is None or not (rollout.is_active or model.weights.get(rollout.candidate)):
        raise RolloutError("there is no rollout to promote: start one first")
    if _known(model, rollout.candidate).state != "ready":
        raise RolloutError(f"version {rollout.candidate} is not ready")
    changed = _with_weights(
        _replace(model, rollout=_replace(rollout, phase="done", reason=reason)), {rollout.candidate: WHOLE}
    )
    return _noted(changed, at, "promoted", rollout.candidate, reason)


def pause(model: Model, at: datetime, reason: str) -> Model:
    """A rollout goes no further by itself."""
    rollout = _active(model)
    if rollout.phase == "paused":
        raise RolloutError(f"the rollout of {rollout.candidate} is paused already")
    changed = _replace(model, rollout=_replace(rollout, phase="paused", reason=reason))
    return _noted(changed, at, "paused", rollout.candidate, reason)


def resume(model: Model, at: datetime, reason: str) -> Model:
    """A paused rollout goes on; its step begins anew."""
    rollout = _active(model)
    if rollout.phase != "paused":
        raise RolloutError(f"the rollout of {rollout.candidate} is not paused")
    changed = _replace(model, rollout=_replace(rollout, phase="running", step_began=at, reason=reason))
    return _noted(changed, at, "resumed", rollout.candidate, reason)


def roll_back(model: Model, at: datetime, reason: str) -> Model:
    """The weights from before the rollout, be it on or done.

    Raises:
        RolloutError: there was none, it went back already, or no version of then can take traffic.
    """
    rollout = model.rollout
    if rollout is None:
        raise RolloutError("there is no rollout to roll back")
    ready = {version.version for version in model.versions if version.state == "ready"}
    before = {name: weight for name, weight in rollout.before.items() if name in ready}
    if not before:
        raise RolloutError(f"none of the versions before is ready: {', '.join(rollout.before)}")
    changed = _with_weights(
        _replace(model, rollout=_replace(rollout, phase="done", reason=reason)), _whole(before)
    )
    if not rollout.is_active and changed.weights == model.weights:
        raise RolloutError(f"the rollout of {rollout.candidate} went back already")
    return _noted(changed, at, "rolled back", rollout.candidate, reason)


def prefer(model: Model, version: str, at: datetime) -> Model:
    """All traffic for a version, without a rollout.

    Raises:
        RolloutError: it is not ready, or a rollout is on.
    """
    if model.rollout is not None and model.rollout.is_active:
        raise RolloutError(
            f"the rollout of {model.rollout.candidate} is on: promote it or roll it back first"
        )
    if _known(model, version).state != "ready":
        raise RolloutError(f"version {version} is not ready")
    return _noted(_with_weights(model, {version: WHOLE}), at, "preferred", version)


def retire(model: Model, version: str, at: datetime) -> Model:
    """A version takes no more requests, whoever names it, and may be unregistered once it is drained.

    Raises:
        RolloutError: it has traffic, or a rollout is about it.
    """
    known = _known(model, version)
    if known.weight:
        share = known.weight * 100 / WHOLE
        raise RolloutError(f"version {version} takes {share:g}% of the traffic: move it away first")
    rollout = model.rollout
    if rollout is not None and rollout.is_active and rollout.candidate == version:
        raise RolloutError(f"version {version} is being rolled out: roll it back first")
    return become(model, version, "retired", at)


def adopt(model: Model, version: Version, *, is_default: bool) -> Model:
    """A version that is served, and that nobody told us of; the default one gets all traffic if none has."""
    changed = _placed(model, _replace(version, state="ready"))
    if is_default and not changed.weights:
        changed = _with_weights(changed, {version.version: WHOLE})
    return _noted(changed, version.registered_at, "adopted", version.version)


def _at_step(model: Model) -> Model:
    """The weights of a rollout's step: what the candidate does not take is the others', in proportion."""
    rollout = _active(model)
    own = rollout.steps[rollout.step]
    others = {name: weight for name, weight in rollout.before.items() if name != rollout.candidate}
    shared = _whole(others, WHOLE - own)
    return _with_weights(model, {**shared, rollout.candidate: own})


def _whole(weights: Mapping[str, int], total: int = WHOLE) -> dict[str, int]:
    """Weights in the same proportions that sum to `total`."""
    parts = sum(weights.values())
    scaled = {name: weight * total // parts for name, weight in weights.items()}
    first = max(weights, key=lambda name: weights[name])
    scaled[first] += total - sum(scaled.values())
    return scaled


def _active(model: Model) -> Rollout:
    if model.rollout is None or not model.rollout.is_active:
        raise RolloutError("no rollout is on")
    return model.rollout


def _known(model: Model, version: str) -> Version:
    known = model.find(version)
    if known is None:
        names = ", ".join(other.version for other in model.versions) or "none"
        raise RolloutError(f"there is no version {version}: there are {names}")
    return known


def _placed(model: Model, version: Version) -> Model:
    """With a version after all others, or in the place and with the weight that it had."""
    known = model.find(version.version)
    if known is None:
        return _replace(model, versions=(*model.versions, version))
    return _with_version(model, _replace(version, weight=known.weight))


def _with_version(model: Model, changed: Version) -> Model:
    versions = tuple(changed if known.version == changed.version else known for known in model.versions)
    return _replace(model, versions=versions)


def _with_weights(model: Model, weights: Mapping[str, int]) -> Model:
    versions = tuple(_replace(version, weight=weights.get(version.version, 0)) for version in model.versions)
    return _replace(model, versions=versions)


def _noted(model: Model, at: datetime, what: str, version: str, reason: str = "") -> Model:
    event: dict[str, Any] = {"at": at, "what": what, "version": version, "reason": reason}
    return model.noted(Event(weights=model.weights, **event))
