"""The built site in a real browser. `make test-browser` builds it before."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build/site"
AXE = ROOT / "site/node_modules/axe-core/axe.min.js"
REPRESENTATIVE = (
    "index",
    "docs/guide",
    "docs/first_hour/student",
    "docs/website/explorer",
    "examples/index",
    "examples/digits",
    "lab/index",
    "lab/results/theory/index",
    "benchmarks/index",
    "CHANGELOG",
)


@pytest.fixture(scope="module")
def addresses() -> list[str]:
    """Every page of the site."""
    found = sorted(path.as_uri() for path in SITE.rglob("*.html"))
    assert len(found) > 30, "make site builds the pages"
    return found


@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_opens_whole(browser: Any, addresses: list[str], width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda line: wrong.append(f"{page.url}: {line.text}") if line.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
    page.on("requestfailed", lambda request: wrong.append(f"{page.url}: {request.url} did not load"))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith(("file:", "data:", "blob:"))
            else wrong.append(f"{page.url}: {request.url} leaves")
        ),
    )
    for address in addresses:
        page.goto(address)
        if page.evaluate("document.documentElement.scrollWidth") > width:
            wrong.append(f"{address}: wider than {width} pixels")
        # Pictures far below are not loaded before a reader comes there.
        page.evaluate("document.querySelectorAll('img').forEach((one) => { one.loading = 'eager'; })")
        page.wait_for_function("[...document.images].every((one) => one.complete)")
        if page.evaluate("[...document.images].some((one) => one.naturalWidth === 0)"):
            wrong.append(f"{address}: a picture is not shown")
    context.close()
    assert not wrong


@pytest.mark.parametrize("colors", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_is_content(browser: Any, width: int, colors: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=colors, bypass_csp=True)
    page = context.new_page()
    serious = []
    for name in REPRESENTATIVE:
        page.goto((SITE / f"{name}.html").as_uri())
        page.add_script_tag(path=str(AXE))
        found = page.evaluate("axe.run(document, { resultTypes: ['violations'], iframes: false })")["violations"]
        for one in found:
            if one["impact"] in ("serious", "critical"):
                serious.append((name, one["id"], [node["html"][:120] for node in one["nodes"]][:3]))
    context.close()
    assert not serious


def test_dark_mode_is_one_click_away(browser: Any) -> None:
    page = browser.new_page(color_scheme="light")
    page.goto((SITE / "index.html").as_uri())
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    seen = set()
    for _ in range(3):  # light, dark, and as the system has it
        page.locator(".theme-toggle:visible").first.click()
        seen.add(page.evaluate(background))
    assert len(seen | {light}) == 2
    page.close()


def test_the_search_finds_a_page(browser: Any) -> None:
    page = browser.new_page()
    page.goto(f"{(SITE / 'search.html').as_uri()}?q=abstain")
    page.locator("ul.search li a").first.wait_for()
    page.close()
