"""How far a file has been sent, so that another run can go on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec
import xxhash

from archive.ingest.batches import Batch, Place
from archive.tables.table import reading
from handler.errors import GraphInputError
from handler.graph.durable import replace_file

_HEAD_BYTES = 1 << 20


class Head(msgspec.Struct, frozen=True):
    """The beginning of a file, which stays when something is appended.

    Args:
        num_bytes: how much that is, at most a mebibyte.
        digest: its checksum.
    """

    num_bytes: int
    digest: str

    @classmethod
    def of(cls, path: Path, num_bytes: int = _HEAD_BYTES) -> Self:
        with reading(path), path.open("rb") as file:
            head = file.read(num_bytes)
        return cls(len(head), xxhash.xxh3_128_hexdigest(head))


class Sent(msgspec.Struct, frozen=True):
    """A batch that is on its way, or that was the last to arrive.

    Args:
        place: where it begins.
        num_mutations: how many it has.
        digest: of its content.
        acknowledged: whether the server has it for sure.
    """

    place: Place
    num_mutations: int
    digest: str
    acknowledged: bool = False


class State(msgspec.Struct, frozen=True):
    """What is known of an ingest.

    Args:
        file, server: what goes where.
        options: that change what the file says.
        head: of the file when it was begun.
        run: what request ids begin with.
        sent: from the last acknowledged batch on; all before is acknowledged.
        num_mutations: how many are acknowledged.
        last_line, last_seq: of the last of them.
    """

    file: str
    server: str
    options: dict[str, Any]
    head: Head
    run: str
    sent: tuple[Sent, ...] = ()
    num_mutations: int = 0
    last_line: int = 0
    last_seq: int = 0


class Journal:
    """Notes batches before they are sent and when they have arrived.

    So it is known of each batch that may have arrived where it began and how many mutations it had: it is
    sent again as it was, under the same request id, whatever else is different in the next run.

    Args:
        state: so far.
        path: of the file that keeps it, or none.
        replaces: whether another file was sent from this place before.
    """

    def __init__(self, state: State, path: Path | None, *, replaces: bool = False) -> None:
        self.state = state
        self.replaces = replaces
        self._path = path

    @property
    def is_kept(self) -> bool:
        """Whether another run can go on."""
        return self._path is not None

    def request_id(self, batch: Batch) -> str:
        place = batch.place
        return f"{self.state.run}-{place.line}" + (f".{place.part}" if place.part else "")

    def sending(self, batch: Batch) -> None:
        """A batch is about to be sent; all before it have been noted."""
        sent = self.state.sent
        if any(known.place == batch.place for known in sent):
            return
        waiting = [known for known in sent if not known.acknowledged]
        self._note(sent=(*waiting, Sent(batch.place, len(batch), batch.digest)))

    def acknowledged(self, batch: Batch, last_seq: int) -> None:
        """The server has a batch, and all before it."""
        self._note(
            sent=tuple(
                msgspec.structs.replace(known, acknowledged=True) if known.place == batch.place else known
                for known in self.state.sent
            ),
            num_mutations=self.state.num_mutations + len(batch),
            last_line=batch.last_line,
            last_seq=last_seq,
        )

    def remaining(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """What is left to send.

        Args:
            batches: which begin where the first of `state.sent` does, and are as large as these.

        Raises:
            GraphInputError: these are not in the file any more.
        """
        for known in self.state.sent:
            batch = next(batches, None)
            if batch is None or Sent(batch.place, len(batch), batch.digest, known.acknowledged) != known:
                raise GraphInputError(
                    f"{self.state.file}: begins as it did, but is another from line {known.place.line} on,"
                    " which was sent already: --restart sends all of it"
                )
            if not known.acknowledged:
                yield batch
        yield from batches

    def _note(self, **changes: Any) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)
        if self._path is not None:
            replace_file(self._path, msgspec.json.format(msgspec.json.encode(self.state)))


def unrepeatable_journal(name: str, server: str) -> Journal:
    """The journal of a pipe, which no other run can read."""
    return Journal(State(name, server, {}, Head(0, ""), uuid.uuid4().hex), None)


def open_journal(
    path: Path, file: Path, server: str, options: Mapping[str, Any], *, restart: bool = False
) -> Journal:
    """The journal of a file, which goes on if it is of the same file as it was or with more at its end.

    Args:
        path: where it is kept.
        file: what is sent.
        server: where to.
        options: that change what the file says.
        restart: send all of it under new request ids.

    Raises:
        GraphInputError: it cannot be read, or the file was begun with other options.
    """
    head = Head.of(file)
    known = None if restart else _read(path)
    if known is not None and Head.of(file, known.head.num_bytes) == known.head:
        if known.server != server:
            raise GraphInputError(f"{path}: says how far {file} was sent to {known.server}, not to {server}")
        if known.options != dict(options):
            raise GraphInputError(
                f"{file}: was begun with {_shown(known.options)}, not {_shown(options)}: give the same, or"
                " --restart to send all of it"
            )
        return Journal(known, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GraphInputError(f"{path}: cannot be written: {error.strerror}") from None
    identity = msgspec.json.encode([head, file.stat().st_size, dict(options)], order="sorted")
    run = uuid.uuid4().hex if restart else xxhash.xxh3_128_hexdigest(identity)
    state = State(str(file.resolve()), server, dict(options), head, run)
    return Journal(state, path, replaces=known is not None)


def _read(path: Path) -> State | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise GraphInputError(
            f"{path}: does not say how far the file was sent: {error}; --restart sends all of it"
        ) from None


def _shown(options: Mapping[str, Any]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in sorted(options.items()))
