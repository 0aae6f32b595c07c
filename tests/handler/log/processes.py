"""Other processes that tests start: Python with this repository, fed with a piece of code."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[3]


def run_code(code: str, *arguments: object) -> str:
    """What a piece of code prints, in a process of its own, which must end well."""
    command = _command(code, arguments)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start_code(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that runs a piece of code; it has printed its first line."""
    process = subprocess.Popen(_command(code, arguments), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def kill(process: subprocess.Popen[str]) -> list[str]:
    """Kill a process (-9); the whole lines that it had printed since."""
    process.kill()
    printed, _ = process.communicate()
    return [line for line in printed.splitlines(keepends=True) if line.endswith("\n")]


def start_appending(kind: str, where: str, graph_id: str) -> subprocess.Popen[str]:
    """A process that appends until it is killed."""
    arguments = [kind, where, graph_id, graph_id, "1000000000"]
    command = [sys.executable, "-m", "tests.handler.log.appending", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _command(code: str, arguments: tuple[object, ...]) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
