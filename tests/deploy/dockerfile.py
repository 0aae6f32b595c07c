"""Reads the Dockerfile, as far as it goes: no parser is needed for what one file uses."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass

from tests.deploy.promtool import DEPLOY

DOCKERFILE = DEPLOY / "container" / "Dockerfile"
Instruction = tuple[str, str]


@dataclass(frozen=True)
class Image:
    """What the last stage says of the image.

    Args:
        environment: its variables.
        user: numbers of the user and the group.
        health: the command of the health check.
        command: that it runs, with its arguments.
    """

    environment: dict[str, str]
    user: tuple[int, int]
    health: list[str]
    command: list[str]
    folder: str


def stages() -> list[list[Instruction]]:
    """The instructions of each stage, as word and rest; what comes before the first stage is left out."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    found: list[list[Instruction]] = []
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, rest.strip()))
    return found


def read_image() -> Image:
    """What the image is."""
    last = stages()[-1]
    by_word = dict(last)
    environment = dict(
        part.split("=", 1) for word, rest in last if word == "ENV" for part in shlex.split(rest)
    )
    user, group = by_word["USER"].split(":")
    health = json.loads(by_word["HEALTHCHECK"].partition("CMD")[2])
    command = [*json.loads(by_word["ENTRYPOINT"]), *json.loads(by_word["CMD"])]
    return Image(environment, (int(user), int(group)), health, command, by_word["WORKDIR"])


def copied() -> list[tuple[list[str], str]]:
    """What stages copy out of the project, and to where."""
    return [
        (rest.split()[:-1], rest.split()[-1])
        for stage in stages()
        for word, rest in stage
        if word == "COPY" and not rest.startswith("--from")
    ]
