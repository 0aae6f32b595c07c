"""Writes pictures to files: as an image, or as a page with a table."""

from __future__ import annotations

import html
import io
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from handler.errors import GraphInputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ENDINGS = (".png", ".html")
_PNG_DPI = 150
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font: 14px sans-serif; margin: 2em auto; max-width: 1000px; }}
svg {{ width: 100%; height: auto; }}
th, td {{ text-align: left; vertical-align: top; padding: 0.2em 1em 0.2em 0; overflow-wrap: anywhere; }}
</style>
</head>
<body>
<h1>{title}</h1>
{svg}
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</body>
</html>
"""


@dataclass(frozen=True)
class PageTable:
    """What a page says below its picture."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def check_picture_path(path: Path) -> None:
    """Refuse what cannot be drawn before work is done for it.

    Raises:
        GraphInputError: the file's ending is neither `.png` nor `.html`, or matplotlib is not installed.
    """
    if path.suffix.lower() not in _ENDINGS:
        raise GraphInputError(f"{path}: a picture's name must end in {' or '.join(_ENDINGS)}")
    if find_spec("matplotlib") is None:
        raise GraphInputError("pictures need matplotlib: pip install 'hopserve[plot]'")


def write_picture(figure: Figure, path: Path, title: str, table: PageTable) -> None:
    """Write a figure, as a whole or not at all.

    Args:
        path: `.png`, or `.html` for a page that needs no other file, with title and table.

    Raises:
        GraphInputError: the file has another ending or cannot be written.
    """
    check_picture_path(path)
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # no font has every script's characters
        if path.suffix.lower() == ".png":
            figure.savefig(content, format="png", dpi=_PNG_DPI)
        else:
            nothing_known = dict.fromkeys(["Creator", "Date", "Format", "Type"])
            figure.savefig(content, format="svg", metadata=nothing_known)
    data = content.getvalue()
    if path.suffix.lower() == ".html":
        data = _page(title, data.decode(), table).encode()
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError as error:
        raise GraphInputError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        draft.unlink(missing_ok=True)


def _page(title: str, svg: str, table: PageTable) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)

    return _PAGE.format(
        title=html.escape(title),
        svg=svg[svg.index("<svg") :],
        head=row(table.head, "th"),
        rows="\n".join(f"<tr>{row(cells, 'td')}</tr>" for cells in table.rows),
    )
