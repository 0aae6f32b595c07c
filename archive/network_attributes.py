"""The attributes of a NetworkX graph's nodes or edges, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from numbers import Real
from operator import itemgetter
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphInputError
from handler.graph.arrays import Split

_SPLITS = {None: Split.NONE, "": Split.NONE, "train": Split.TRAIN, "val": Split.VAL, "test": Split.TEST}
_SHOWN = 5
_SHOWN_NAMES = 20


@dataclass(frozen=True)
class Attributes:
    """The attributes of all nodes or of all edges.

    Args:
        kind: `node` or `edge`.
        owners: lists whom they belong to, in order, for error messages.
        data: gives the dictionary of each, in the same order.
        defaults: of attributes that some lack.
    """

    kind: str
    owners: Callable[[], Sequence[object]]
    data: Callable[[], Iterable[Mapping[str, Any]]]
    defaults: Mapping[str, Any]

    @classmethod
    def of_nodes(cls, graph: nx.Graph) -> Attributes:
        def data() -> Iterable[Mapping[str, Any]]:
            return map(itemgetter(1), graph.nodes(data=True))

        return cls("node", lambda: list(graph), data, graph.graph.get("node_default", {}))

    @classmethod
    def of_edges(cls, graph: nx.Graph) -> Attributes:
        def data() -> Iterable[Mapping[str, Any]]:
            return map(itemgetter(2), graph.edges(data=True))

        return cls("edge", lambda: list(graph.edges()), data, graph.graph.get("edge_default", {}))

    def names(self) -> list[str]:
        """The attributes that any of them has."""
        return list(dict.fromkeys(map(str, chain(self.defaults, chain.from_iterable(self.data())))))

    def values(self, name: str) -> list[Any]:
        """One attribute of each; none where it is missing."""
        default = self.defaults.get(name)
        values = [each.get(name, default) for each in self.data()]
        if values and all(value is None for value in values):
            names = [repr(known) for known in self.names()]
            more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
            known = f"they have {', '.join(names[:_SHOWN_NAMES])}{more}" if names else "they have none"
            raise GraphInputError(f"no {self.kind} has an attribute {name!r}: {known}")
        return values

    def matching(self, patterns: Sequence[str], used: Sequence[str | None]) -> list[str]:
        """The attributes that the patterns choose, in the patterns' order, then in the graph's."""
        free = [name for name in self.names() if name not in used] if patterns else []
        chosen: list[str] = []
        for pattern in patterns:
            if pattern in used:
                raise GraphInputError(f"attribute {pattern!r} is no feature: it is used otherwise")
            matched = [pattern] if pattern in free else [name for name in free if fnmatchcase(name, pattern)]
            if not matched:
                self.values(pattern)  # tells which there are
            chosen += matched
        return list(dict.fromkeys(chosen))

    def refuse(self, bad: Any, problem: str) -> None:
        """A `GraphInputError` if `bad`, bool [num_owners], is set for any of them; shows the first few."""
        places = np.flatnonzero(bad)
        if not len(places):
            return
        owners = self.owners()
        shown = ", ".join(_shown(owners[place]) for place in places[:_SHOWN])
        more = ", ..." if len(places) > _SHOWN else ""
        plural = "s" if len(places) > 1 else ""
        raise GraphInputError(f"{problem}: {len(places)} {self.kind}{plural} ({shown}{more})")


def _shown(owner: object) -> str:
    if isinstance(owner, tuple):
        return " -> ".join(map(repr, owner))
    return repr(owner)


def column_of(attributes: Attributes, name: str) -> NDArray[np.float64]:
    """float64 [num_owners]: an attribute that is one number."""
    matrix = _numbers(attributes, name)
    if matrix.shape[1] != 1:
        raise GraphInputError(f"{attributes.kind} attribute {name!r} is a list of numbers, not a number")
    return matrix[:, 0]


def matrix_of(attributes: Attributes, names: Sequence[str]) -> NDArray[np.float32] | None:
    """float32 [num_owners, dim]: attributes side by side; none without any."""
    if not names:
        return None
    parts = []
    for name in names:
        with np.errstate(over="ignore"):
            part = _numbers(attributes, name).astype(np.float32)
        attributes.refuse(
            ~np.isfinite(part).all(axis=1), f"{attributes.kind} attribute {name!r} does not fit float32"
        )
        parts.append(part)
    return np.concatenate(parts, axis=1)


def _numbers(attributes: Attributes, name: str) -> NDArray[np.float64]:
    """float64 [num_owners, dim]: one attribute, which everyone must have."""
    values = attributes.values(name)
    what = f"{attributes.kind} attribute {name!r}"
    attributes.refuse(np.array([value is None for value in values], dtype=np.bool_), f"{what} is missing")
    try:
        array = np.array(values)
    except ValueError:  # lists of several lengths
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "iufb" or array.ndim > 2:
        # NumPy has a type for many a mixture: the slow way finds whose fault it is.
        no_numbers = np.array([not _are_numbers(value) for value in values], dtype=np.bool_)
        attributes.refuse(no_numbers, f"{what} is neither a number nor a list of numbers")
        lengths = np.array([np.size(value) if np.ndim(value) else -1 for value in values])
        attributes.refuse(lengths != lengths[0], f"{what} is not as long as the first one")
        array = np.array(values, dtype=np.float64)
    numbers = array.astype(np.float64)
    numbers = numbers[:, None] if numbers.ndim == 1 else numbers
    attributes.refuse(~np.isfinite(numbers).all(axis=1), f"{what} is NaN or infinite")
    return numbers


def _are_numbers(value: object) -> bool:
    if isinstance(value, list | tuple | np.ndarray):
        return all(isinstance(number, Real) for number in value)
    return isinstance(value, Real)


def classes_of(values: list[Any]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """int64 [num_nodes], -1 where there is none, and the names by class."""
    text = ["" if value is None or _is_nan(value) else str(value) for value in values]
    names = set(text) - {""}
    are_ints = all(len(name) < 20 and name.removeprefix("-").isdecimal() for name in names)
    ordered = sorted(names, key=(lambda name: (int(name), name)) if are_ints else None)
    klass = {"": -1} | {name: place for place, name in enumerate(ordered)}
    return np.array([klass[name] for name in text], dtype=np.int64), tuple(ordered)


def _is_nan(value: object) -> bool:
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def splits_of(nodes: Attributes, name: str) -> NDArray[np.uint8]:
    values = nodes.values(name)
    unknown = np.array([value is not None and value not in _SPLITS for value in map(_hashable, values)])
    nodes.refuse(unknown, f"node attribute {name!r} is not train, val, test or empty")
    return np.array([_SPLITS[value] for value in values], dtype=np.uint8)


def _hashable(value: object) -> object:
    return value if isinstance(value, str) or value is None else repr(value)
