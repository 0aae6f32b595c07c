"""The console in a real browser, of a real gateway in front of a real TorchServe."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from gateway.envoy.process import find_envoy, kill_envoy
from tests.gateways import Front, fronted

_CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(_CHROMIUM is None, reason="chromium is not installed")
_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def front(archive_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with fronted(tmp_path_factory.mktemp("console") / "ts", archive_of("1.0"), archive_of("2.0")) as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=_CHROMIUM, args=list(_OPTIONS))
        yield started
        started.close()


class _Opened:
    """The page, and what it has complained about and asked for."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.set_default_timeout(_PATIENCE_MS)
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(f"{url}/console")

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)


@pytest.fixture
def opened(front: Front, browser: Browser) -> Iterator[_Opened]:
    url = f"http://127.0.0.1:{front.gateway.settings.controller_port}"
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    opened = _Opened(page, url)
    yield opened
    page.close()
    assert {asked[: len(url) + 1] for asked in opened.asked} == {f"{url}/"}
    assert opened.complaints == []


def _expect(opened: _Opened, selector: str, text: str) -> None:
    expect(opened.page.locator(selector).first).to_contain_text(text, timeout=_PATIENCE_MS)


def _ask_until(front: Front, is_shown: Callable[[], bool]) -> None:
    """Ask about nodes, each a new one, until the page shows something of it."""
    deadline = time.monotonic() + _PATIENCE_MS / 1_000
    node = 0
    while not is_shown():
        assert time.monotonic() < deadline
        node = node % 1_000 + 1
        for version in ("1.0", "2.0"):
            assert front.ask({"node_id": node}, headers={"X-Model-Version": version}).status_code == 200


def test_versions_and_their_charts_are_live(front: Front, opened: _Opened) -> None:
    _expect(opened, "#live", "live")
    rows = opened.page.locator("#versions tbody tr")
    expect(rows).to_have_count(2, timeout=_PATIENCE_MS)
    _expect(opened, "#versions tbody tr:nth-child(1)", "100%")
    _expect(opened, "#versions tbody tr:nth-child(1)", "1 of 1")
    _expect(opened, "#versions tbody tr:nth-child(2)", "0%")
    _expect(opened, "#workers", "ready")
    _expect(opened, "#events", "adopted")

    charts = opened.page.locator("#charts figure")
    _ask_until(front, lambda: charts.nth(0).locator("path.line").count() == 2)
    # Requests, latency, and the averages of the samples.
    for chart, parts in (
        (0, ["1.0", "2.0", "/s"]),
        (1, ["1.0 p50", "2.0 p99", "ms"]),
        (3, ["1.0"]),
        (4, ["2.0"]),
    ):
        _ask_until(front, lambda place=chart: "\u2013" not in charts.nth(place).inner_text())  # type: ignore[misc]
        for part in parts:
            expect(charts.nth(chart)).to_contain_text(part)
    _ask_until(front, lambda: "live" in charts.nth(5).inner_text())
    before = charts.nth(0).locator("path.line").first.get_attribute("d")
    _ask_until(front, lambda: charts.nth(0).locator("path.line").first.get_attribute("d") != before)

    # The arrow keys read values off.
    plot = charts.nth(0).locator(".plot")
    plot.press("ArrowLeft")
    plot.press("ArrowLeft")
    assert plot.locator(".cursor").count() == 1


def test_a_rollout_is_shown_as_it_is(front: Front, opened: _Opened) -> None:
    front.hopserve("rollout", "start", "2.0", "--steps", "5,25,100", "--every", "10m")
    try:
        _expect(opened, "#rollout", "To 2.0")
        _expect(opened, "#rollout [aria-current=step]", "5%")
        _expect(opened, "#rollout .decision", "The controller:")
        _expect(opened, "#versions tbody tr:nth-child(2)", "5%")
    finally:
        front.hopserve("rollout", "rollback")
    _expect(opened, "#rollout", "done")
    _expect(opened, "#versions tbody tr:nth-child(1)", "100%")
    _expect(opened, "#events", "rolled back")


def test_a_node_is_explained(opened: _Opened) -> None:
    _expect(opened, "#versions tbody tr:nth-child(1)", "1.0")
    opened.page.fill("#look-node", "42")
    opened.page.press("#look-node", "Enter")
    _expect(opened, "#look-result h3", "Node 42: Label")
    assert opened.page.locator("#look-result .subgraph .node").count() > 10
    assert opened.page.locator("#look-result .subgraph .edge").count() > 10
    assert opened.page.locator("#look-result tbody tr").count() > 10


def test_why_a_node_is_not_explained_is_said(opened: _Opened) -> None:
    _expect(opened, "#versions tbody tr:nth-child(1)", "1.0")
    opened.page.select_option("#look-version", "2.0")
    opened.page.fill("#look-node", "99999999")
    opened.page.click("#look button")
    _expect(opened, "#look-result .error", "99999999")


def test_a_phone_needs_no_scrolling_sideways(opened: _Opened) -> None:
    opened.page.set_viewport_size({"width": 390, "height": 844})
    for scheme in ("light", "dark"):
        opened.page.emulate_media(color_scheme=scheme)
        _expect(opened, "#versions tbody tr:nth-child(1)", "1.0")
        assert opened.page.evaluate("document.documentElement.scrollWidth") == 390


def test_an_envoy_that_is_away_is_named_and_comes_back(front: Front, opened: _Opened) -> None:
    _expect(opened, "#live", "live")
    seen: list[str] = []
    for _ in range(3):  # the controller starts it again, and may be faster than the next sample
        envoy = find_envoy(front.gateway.files)
        assert envoy is not None
        kill_envoy(envoy)
        for _ in range(40):
            seen.append(opened.text("#problems"))
            opened.page.wait_for_timeout(50)
        if any("Envoy is away" in text for text in seen):
            break
    assert any("Envoy" in text for text in seen)
    expect(opened.page.locator("#problems")).to_be_empty(timeout=_PATIENCE_MS)
    assert front.ask({"node_id": 42}).status_code == 200


def test_other_names_of_this_machine_are_refused(front: Front) -> None:
    url = f"http://127.0.0.1:{front.gateway.settings.controller_port}/console"
    assert httpx.get(url).status_code == 200
    assert httpx.get(url, headers={"Host": "example.org"}).status_code == 403
