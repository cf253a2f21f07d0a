"""A real browser, and a page with data for every view."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harmax.inspect.explorer import ExplorerDocument, page_of
from planted_pages import planted_page


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="make test-browser installs playwright")
    found = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)
    if found is None:
        pytest.fail("no Chromium was found; `make test-browser` installs it where it can")
    with sync_api.sync_playwright() as playwright:
        # Chromium's own sandbox does not start for root, as in most containers.
        arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        running = playwright.chromium.launch(executable_path=found, args=arguments)
        yield running
        running.close()


@pytest.fixture(scope="session")
def document() -> ExplorerDocument:
    """Data for every view."""
    return planted_page()


@pytest.fixture(scope="session")
def file(document: ExplorerDocument, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page on disk."""
    path = tmp_path_factory.mktemp("explorer") / "explore.html"
    path.write_text(page_of(document), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: Any, file: Path) -> Iterator[Any]:
    """The page, opened from disk; it may not load anything nor fail."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    asked: list[str] = []
    failed: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("pageerror", lambda error: failed.append(str(error)))
    opened.on("console", lambda line: failed.append(line.text) if line.type == "error" else None)
    opened.goto(file.as_uri())
    yield opened
    context.close()
    assert {url for url in asked if not url.startswith("data:")} == {file.as_uri()}
    assert not failed
