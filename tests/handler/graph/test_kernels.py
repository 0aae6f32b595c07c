"""Compiled code is found again by whoever runs the same kernels, and by nobody else."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import handler
from handler.graph import kernels
from handler.graph.hashing import edge_key, mix64
from handler.graph.id_kernels import hash_ints
from handler.graph.kernels import cache_folder, compiled_from

PACKAGE = Path(handler.__file__).resolve().parent
KERNEL_MODULES = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if re.search(r"^@(compiled|embedded|inlined)$", path.read_text(), re.MULTILINE)
]
HASHES = (
    "from handler.graph.id_kernels import hash_ints; import numpy;"
    "print(hash_ints(numpy.arange(1))[0], sum(hash_ints.stats.cache_misses.values()))"
)


def _hash(folder: Path, cache: Path) -> list[int]:
    """The hash of id 0 by the package in a folder, and how many kernels were compiled for it."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(cache)}
    printed = subprocess.check_output([sys.executable, "-c", HASHES], env=environment, cwd=folder, text=True)
    return [int(number) for number in printed.split()]


def _copied(folder: Path) -> Path:
    shutil.copytree(PACKAGE, folder / "handler", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_compiled_code_is_shared_by_copies_of_the_package(tmp_path: Path) -> None:
    """A model archive is unpacked to a new folder at every start: it must not compile anew."""
    one, two = _copied(tmp_path / "one"), _copied(tmp_path / "two")
    first, num_compiled = _hash(one, tmp_path / "cache")
    assert num_compiled == 1
    assert _hash(two, tmp_path / "cache") == [first, 0]


def test_only_what_is_compiled_in_is_compiled_anew(tmp_path: Path) -> None:
    before = _copied(tmp_path / "before")
    first, _ = _hash(before, tmp_path / "cache")

    plain = _copied(tmp_path / "plain")
    compiled_in = set(compiled_from(PACKAGE / "graph" / "id_kernels.py"))
    for path in PACKAGE.rglob("*.py"):
        if path not in compiled_in:
            with (plain / "handler" / path.relative_to(PACKAGE)).open("a") as file:
                file.write("\n# edited\n")
    assert _hash(plain, tmp_path / "cache") == [first, 0]

    changed = _copied(tmp_path / "changed")
    hashing = changed / "handler" / "graph" / "hashing.py"
    hashing.write_text(hashing.read_text().replace("0x9E3779B97F4A7C15", "0"))
    assert _hash(changed, tmp_path / "cache") == [0, 1]  # a bijection that keeps 0
    assert _hash(before, tmp_path / "cache") == [first, 0]


@pytest.mark.parametrize("path", KERNEL_MODULES, ids=lambda path: path.stem)
def test_edits_of_plain_python_leave_compiled_code_valid(path: Path) -> None:
    shared = {PACKAGE / "graph" / "kernels.py", PACKAGE / "graph" / "overlay_layout.py"}
    assert set(compiled_from(path)) <= {*KERNEL_MODULES, *shared}
    for node in ast.parse(path.read_text()).body:
        assert not isinstance(node, ast.ClassDef)
        if isinstance(node, ast.FunctionDef):
            assert node.decorator_list, f"{node.name} is not compiled"


@pytest.mark.parametrize("kernel", [mix64, edge_key, hash_ints])
def test_code_lies_in_the_folder_of_its_module(kernel: object) -> None:
    function = kernel.py_func  # type: ignore[attr-defined]  # of Numba's dispatcher
    folder = kernel._cache.cache_path  # type: ignore[attr-defined]
    assert Path(folder) == cache_folder(Path(function.__code__.co_filename).resolve())


@pytest.mark.parametrize(
    ("line", "imported"),
    [
        ("from handler.rooms.a import name", {"rooms/a.py"}),
        ("from handler.rooms import a", {"rooms/__init__.py", "rooms/a.py"}),
        ("from .a import name", {"rooms/a.py"}),
        ("from . import a", {"rooms/__init__.py", "rooms/a.py"}),
        ("from ..top import *", {"top.py"}),
        ("import handler.rooms.a", {"__init__.py", "rooms/__init__.py", "rooms/a.py"}),
        ("def later():\n    from handler.top import name", {"top.py"}),
        ("import numpy, handlers.top", set()),
    ],
)
def test_every_form_of_import_counts(
    line: str, imported: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_PACKAGE", tmp_path)  # the folder may have any name
    (tmp_path / "rooms").mkdir()
    for name in ("__init__.py", "top.py", "rooms/__init__.py", "rooms/a.py", "rooms/unused.py"):
        (tmp_path / name).touch()
    (tmp_path / "rooms" / "kernel.py").write_text("from handler.rooms.between import x")
    (tmp_path / "rooms" / "between.py").write_text(line)
    found = compiled_from(tmp_path / "rooms" / "kernel.py")
    assert {path.relative_to(tmp_path).as_posix() for path in found} == {
        "rooms/kernel.py",
        "rooms/between.py",
    } | imported


def test_another_compiler_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    source = PACKAGE / "graph" / "hashing.py"
    ours = cache_folder.__wrapped__(source)
    assert ours == cache_folder(source)
    monkeypatch.setattr(kernels, "version", lambda name: "0.0" if name == "llvmlite" else "1.0")
    assert cache_folder.__wrapped__(source) != ours
