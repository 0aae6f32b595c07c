"""How the inner loops are compiled, and where their machine code is kept.

Numba keeps compiled code beside the source file. A model archive is unpacked to a new folder at every
start, so every worker would compile again. Here the code is kept in one folder per content of this
package instead: any copy of the same sources finds it, and changed sources never find stale code (also
when a kernel calls another module's kernel, which Numba itself does not notice).
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import caching, cgutils, types
from numba.extending import intrinsic

_PACKAGE = Path(__file__).resolve().parent
_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


@functools.cache
def cache_folder() -> Path:
    """The folder of this package's compiled code: below `$NUMBA_CACHE_DIR` or the user's cache."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = Path(chosen) if chosen else cache / "hopserve" / "numba"
    digest = hashlib.sha256()
    for source in sorted(_PACKAGE.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return root / digest.hexdigest()[:32]


class ContentLocator(caching._CacheLocator):  # type: ignore[misc]  # Numba ships no types
    """Places the code of this package's kernels by content, and of nothing else."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._name = f"{Path(file).stem}-{function.__code__.co_firstlineno}"

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> ContentLocator | None:
        if Path(file).resolve().parent != _PACKAGE:
            return None
        locator = cls(function, file)
        try:
            locator.ensure_cache_path()
        except OSError:  # a read-only home: Numba's other locators are tried next
            return None
        return locator

    def get_cache_path(self) -> str:
        return str(cache_folder())

    def get_source_stamp(self) -> str:
        return cache_folder().name

    def get_disambiguator(self) -> str:
        return self._name


if ContentLocator not in caching.CacheImpl._locator_classes:
    caching.CacheImpl._locator_classes.insert(0, ContentLocator)


def compiled(function: _Kernel) -> _Kernel:
    """Compile a kernel on its first call: cached on disk, and running without the GIL."""
    kernel: _Kernel = numba.njit(cache=True, nogil=True)(function)
    return kernel


def inlined(function: _Kernel) -> _Kernel:
    """Compile a part of kernels, which nothing but kernels calls: without what calls from Python need."""
    kernel: _Kernel = numba.njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(
        function
    )
    return kernel


def embedded(function: _Kernel) -> _Kernel:
    """Compile a small part of kernels into whatever calls it.

    A call hands over some 200 words for the arrays of `BaseArrays` and `AddedArrays`, which takes longer than
    what a small kernel does.
    """
    kernel: _Kernel = numba.njit(
        cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True
    )(function)
    return kernel


@intrinsic  # type: ignore[untyped-decorator]  # Numba ships no types
def borrowed(typing_context: Any, arrays: Any) -> Any:
    """The same tuple of arrays without their owners, for the time of the kernel that was given it.

    Numba counts references of every array of a tuple, by atomic additions, wherever the tuple is handed on.
    For `BaseArrays` and `AddedArrays` that takes longer than what most kernels do. Arrays without an owner
    are not counted, so kernels that hand them on begin with this. They must not return a view of one.
    """

    def without_owners(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,) = arguments
        for place, kind in enumerate(signature.args[0].types):
            if isinstance(kind, types.Array):
                array = context.make_array(kind)(context, builder, builder.extract_value(value, place))
                array.meminfo = cgutils.get_null_value(array.meminfo.type)
                array.parent = cgutils.get_null_value(array.parent.type)
                value = builder.insert_value(value, array._getvalue(), place)
        return value

    return arrays(arrays), without_owners
