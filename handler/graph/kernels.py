"""How the inner loops are compiled, and where their machine code is kept.

Numba keeps compiled code beside the source file. A model archive is unpacked to a new folder at every
start, so every worker would compile again. Here a module's code is kept in a folder that is named by the
content of the module and of all that it imports of this package: any copy of the same sources finds it, and
changed sources never find stale code (also when a kernel calls another module's kernel, which Numba itself
does not notice). So that few edits change it, modules with kernels import nothing of this package but
other such modules, and `overlay_layout`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import resolve_name
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import caching, cgutils, types
from numba.extending import intrinsic

_PACKAGE = Path(__file__).resolve().parents[1]
_NAME = __name__.partition(".")[0]
_COMPILERS = ("llvmlite", "numba", "numpy")  # which processor it is, Numba itself keeps apart
_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def cache_root() -> Path:
    """Where compiled code is kept: `$NUMBA_CACHE_DIR`, or in the user's cache."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else cache / "hopserve" / "numba"


@functools.cache
def cache_folder(source: Path) -> Path:
    """The folder of one module's compiled code, by all that it is compiled from and with."""
    digest = hashlib.sha256(repr([(name, version(name)) for name in _COMPILERS]).encode())
    for path in compiled_from(source):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return cache_root() / digest.hexdigest()[:32]


def compiled_from(source: Path) -> list[Path]:
    """A module's source, and those of all that it imports of this package, directly or not.

    A kernel takes functions and constants from its module's names, and these from there and nowhere else.
    """
    found: set[Path] = set()
    waiting = [source.resolve()]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imported(path)
    return sorted(found)


@functools.cache
def _imported(source: Path) -> list[Path]:
    """The files of this package that a module's imports may mean: modules, and packages' own."""
    names = [name.split(".") for name in _imported_names(source)]
    paths = [_PACKAGE.joinpath(*below) for top, *below in names if top == _NAME]
    files = [file for path in paths for file in (path.with_suffix(".py"), path / "__init__.py")]
    return [file for file in files if file.is_file()]


def _imported_names(source: Path) -> Iterator[str]:
    package = ".".join((_NAME, *source.parent.relative_to(_PACKAGE).parts))
    for node in ast.walk(ast.parse(source.read_bytes())):
        if isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)  # modules, or names in one
        elif isinstance(node, ast.Import):
            for alias in node.names:  # `import a.b` makes `a` known, too
                yield from accumulate(alias.name.split("."), "{}.{}".format)


class ContentLocator(caching._CacheLocator):  # type: ignore[misc]  # Numba ships no types
    """Places the code of this package's kernels by content, and of nothing else."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._folder = cache_folder(Path(file).resolve())
        self._name = f"{Path(file).stem}-{function.__code__.co_firstlineno}"

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> ContentLocator | None:
        if not Path(file).resolve().is_relative_to(_PACKAGE):
            return None
        locator = cls(function, file)
        try:
            locator.ensure_cache_path()
        except OSError:  # a read-only home: Numba's other locators are tried next
            return None
        return locator

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._folder.name

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
