"""The state of all rollouts as it is kept on the disk: versions, their weights and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gateway.errors import RolloutError
from gateway.traffic import WHOLE
from handler.graph.durable import replace_file
from handler.locks import locked

FORMAT_VERSION = 1
MANIFEST_NAME = "rollouts.json"
_MAX_EVENTS = 1_000

Weight = Annotated[int, msgspec.Meta(ge=0, le=WHOLE)]
VersionState = Literal["loading", "ready", "missing", "retired"]
Phase = Literal["running", "paused", "done"]


class Version(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A version of a model.

    Args:
        archive: its file in the model store.
        checksum: XXH3-128 of the file, in hexadecimal.
        metrics: of its training, by name.
        registered_at: when it was first seen, in UTC.
        state: `loading` until its workers are ready, then `ready`; `missing` while TorchServe does not serve
            it although it should; `retired` once it was unregistered.
        weight: its part of the traffic in hundredths of a percent.
    """

    version: str
    archive: str
    checksum: str = ""
    metrics: dict[str, float] = {}
    registered_at: datetime
    state: VersionState = "loading"
    weight: Weight = 0


class Rollout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A way to more traffic for one version, step by step.

    Args:
        candidate: the version.
        before: the weights when it began, by version; what a rollback gives back.
        steps: weights of the candidate, one after the other; a first one of 0 has only copies of requests.
        every_s: how long each step lasts at least.
        shadow_share: of the requests of which the candidate gets copies while its weight is 0.
        step: the present one, counted from 0.
        step_began: in UTC.
        phase: `paused` goes no further but still back; `done` has reached its last step, or went back.
        reason: why it is where it is.
    """

    candidate: str
    before: dict[str, Weight]
    steps: Annotated[tuple[Weight, ...], msgspec.Meta(min_length=1)]
    every_s: Annotated[float, msgspec.Meta(ge=0)]
    shadow_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    step: int = 0
    step_began: datetime
    phase: Phase = "running"
    reason: str = ""

    @property
    def is_active(self) -> bool:
        """Whether it may still move."""
        return self.phase != "done"

    @property
    def is_last_step(self) -> bool:
        """Whether no step follows."""
        return self.step == len(self.steps) - 1


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What happened to a model.

    Args:
        at: in UTC.
        what: a word, such as `started` or `rolled back`.
        version: which it happened to.
        weights: afterwards, by version; those of 0 are left out.
        reason: in a sentence.
    """

    at: datetime
    what: str
    version: str
    weights: dict[str, Weight]
    reason: str = ""


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model: its versions in the order of their registration, its rollout, and its history."""

    versions: tuple[Version, ...] = ()
    rollout: Rollout | None = None
    history: tuple[Event, ...] = ()

    def find(self, version: str) -> Version | None:
        """A version that was registered at some time."""
        return next((known for known in self.versions if known.version == version), None)

    @property
    def weights(self) -> dict[str, int]:
        """The weights that are not 0, by version."""
        return {version.version: version.weight for version in self.versions if version.weight}

    def noted(self, event: Event) -> Model:
        """The same with one more event; very old ones go."""
        return msgspec.structs.replace(self, history=(*self.history, event)[-_MAX_EVENTS:])


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All models, by name."""

    format_version: int = FORMAT_VERSION
    models: dict[str, Model] = {}


class ManifestFile:
    """The file of the state, which one process changes at a time.

    Args:
        folder: in which it is, together with its lock.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / MANIFEST_NAME
        self._lock = folder / f".{MANIFEST_NAME}.lock"

    def read(self) -> Manifest:
        """The present state; without a file, that of a beginning.

        Raises:
            RolloutError: it cannot be read, or is not what we write.
        """
        try:
            manifest = msgspec.json.decode(self.path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            return Manifest()
        except OSError as error:
            raise RolloutError(f"{self.path}: cannot be read: {error.strerror}") from None
        except msgspec.DecodeError as error:
            raise RolloutError(f"{self.path}: is no state of rollouts: {error}") from None
        if manifest.format_version != FORMAT_VERSION:
            raise RolloutError(
                f"{self.path}: has format {manifest.format_version}, and this Hopserve reads {FORMAT_VERSION}"
            )
        return manifest

    @contextmanager
    def changing(self) -> Iterator[Callable[[Manifest], None]]:
        """Keep other writers out; what is given writes a new state at once, durably and in one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)

        def write(manifest: Manifest) -> None:
            try:
                replace_file(self.path, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
            except OSError as error:
                raise RolloutError(f"{self.path}: cannot be written: {error.strerror}") from None

        with locked(self._lock, wait=True):
            yield write
