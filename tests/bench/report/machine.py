"""What was measured on, and with what."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

import handler

_ROOT = Path(__file__).parents[3]
_PACKAGES = ("torch", "torch_geometric", "numba", "numpy", "torchserve", "fastapi", "uvicorn", "networkx")


def describe_machine() -> dict[str, Any]:
    """Cores, memory and versions."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "memory_available_gb": round(psutil.virtual_memory().available / 1e9, 1),
        "load_average_before": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "hopserve": handler.__version__,
        "commit": _commit(),
        **{package: _version(package) for package in _PACKAGES},
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Of the repository that this is in, if it is in one; with a + where files differ from it."""
    try:
        head, changed = (
            subprocess.run(
                ["git", *words], cwd=_ROOT, capture_output=True, text=True, check=True
            ).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + "+" * bool(changed)
