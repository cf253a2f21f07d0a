"""The site, without building it: everything is on it, and its links lead to pages of its own."""

import ast
import importlib
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest

import harmax
import harmax_lab
from pages import api
from pages.site import REPOSITORY, ROOT
from test_docs import links
from website import check, contents, gallery
from website.links import rewritten
from website.reach import make_reachable
from website.stage import stage


def test_every_page_of_text_is_on_the_site():
    assert contents.pages_of_text() <= set(contents.sources())


def test_every_example_is_in_the_gallery_and_each_reason_belongs_to_one():
    examples = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert {path.stem for path in contents.sources() if path.suffix == ".py"} == examples
    assert set(contents.NOT_EXECUTED) < examples


@pytest.mark.parametrize("example", sorted(contents.below("examples")), ids=lambda path: path.stem)
def test_make_site_installs_what_an_executed_example_needs(example):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    there = {re.split("[>=]", one)[0] for one in extras["site"]}
    needed = re.search(r"pip install \S+((?: [\w-]+)*)", ast.get_docstring(ast.parse(example.read_text())))
    assert example.stem in contents.NOT_EXECUTED or set(needed[1].split()) <= there


def names_of(module):
    return {id(getattr(module, name)) for name in getattr(module, "__all__", ())}


@pytest.mark.parametrize("package", [harmax, harmax_lab], ids=lambda package: package.__name__)
def test_every_public_package_is_on_an_api_page(package):
    listed = {*api.LIBRARY, *api.LABORATORY}
    shown = set().union(*(names_of(importlib.import_module(place)) for place in listed))
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        private = "._" in module.name or module.name.startswith(f"{package.__name__}.cli")
        if module.ispkg and not private and module.name not in listed:
            assert names_of(importlib.import_module(module.name)) <= shown, module.name


GUIDE, VERDICTS = ROOT / "docs/guide.md", ROOT / "lab/README.md"


@pytest.mark.parametrize(
    ("page", "written", "expected"),
    [
        (VERDICTS, f"[a]({REPOSITORY}/blob/main/docs/guide.md#the-idea)", "[a](../docs/guide.md#the-idea)"),
        (VERDICTS, f"[a]({REPOSITORY}/tree/main/lab/results/theory)", "[a](results/theory/index.md)"),
        (GUIDE, "[a](../examples/digits.py)", "[a](../examples/digits.md)"),
        (GUIDE, "[a](circle.py)", f"[a]({REPOSITORY}/blob/main/docs/circle.py)"),
        (GUIDE, "[a](#the-idea) [b](https://pytorch.org)", "[a](#the-idea) [b](https://pytorch.org)"),
        (GUIDE, "`[a](circle.py)`", "`[a](circle.py)`"),
        (GUIDE, "```text\n[a](circle.py)\n```", "```text\n[a](circle.py)\n```"),
    ],
)
def test_links_stay_on_the_site_where_they_can(page, written, expected):
    assert rewritten(written, page, contents.sources())[0] == expected


def test_a_link_to_nothing_ends_the_build():
    with pytest.raises(FileNotFoundError, match=r"docs/guide.md links to nowhere.md"):
        rewritten("[a](nowhere.md)", GUIDE, contents.sources())


def test_all_pages_are_written_with_their_pictures_and_listed_once(tmp_path):
    drawn = tmp_path / "drawn"
    drawn.mkdir()
    (drawn / gallery.OUTPUT).write_text("it was executed")
    (drawn / "drawn.svg").write_text("<svg/>")
    executed = {path: None if path.stem in contents.NOT_EXECUTED else drawn for path in contents.below("examples")}
    stage(tmp_path / "pages", executed)

    pages = {path.relative_to(tmp_path / "pages"): path.read_text() for path in (tmp_path / "pages").rglob("*.md")}
    trees = re.findall(r"```{toctree}\n(.*?)```", "\n".join(pages.values()), flags=re.DOTALL)
    listed = re.findall(r"^(?:.*<)?/([\w/]+)>?$", "\n".join(trees), flags=re.MULTILINE)
    assert sorted(listed) == sorted(str(path.with_suffix("")) for path in pages if str(path) != "index.md")
    assert "it was executed" in pages[Path("examples/digits.md")]
    assert contents.NOT_EXECUTED["texts"] in pages[Path("examples/texts.md")]
    made = {tmp_path / "pages/docs/website/explorer/explore.html"}  # by `harmax explore`
    for path in (tmp_path / "pages" / page for page in pages):
        for target in links(path):
            inside = path.parent / target.partition("#")[0]
            assert target.startswith(("https://", "#")) or inside.exists() or inside in made, (path, target)


def test_an_example_is_executed_again_only_after_a_change(tmp_path):
    example, runs = tmp_path / "draw.py", tmp_path / "runs"
    code = f"open({str(runs)!r}, 'a').write('x'); open('picture.svg', 'w').write('<svg/>'); print('drawn')"
    example.write_text(code)
    for _ in range(2):
        found = gallery.executed(example, tmp_path / "cache")
        assert runs.read_text() == "x"
    assert (found / gallery.OUTPUT).read_text() == "drawn\n"
    assert (found / "picture.svg").exists()
    example.write_text(f"{code}; print('again')")
    assert "again" in (gallery.executed(example, tmp_path / "cache") / gallery.OUTPUT).read_text()
    assert runs.read_text() == "xx"
    assert not found.exists()
    example.write_text("raise ValueError('no luck')")
    with pytest.raises(RuntimeError, match=r"draw.py must run .*\n.*(\n.*)*no luck"):
        gallery.executed(example, tmp_path / "cache")


def test_wide_parts_are_reached_by_keyboard(tmp_path):
    page = tmp_path / "folder/page.html"
    page.parent.mkdir()
    page.write_text(
        '<pre>code</pre><div class="table-wrapper docutils"></div><p class="caption" role="heading">API</p>'
    )
    make_reachable(tmp_path)
    assert page.read_text() == (
        '<pre tabindex="0">code</pre><div tabindex="0" class="table-wrapper docutils"></div>'
        '<p class="caption" role="heading" aria-level="2">API</p>'
    )


def test_what_is_wrong_with_a_built_page_is_named(tmp_path):
    (tmp_path / "good.html").write_text('<h1 id="here"></h1><a href="#here"></a><a href="https://pytorch.org"></a>')
    assert check.problems(tmp_path) == []
    (tmp_path / "bad.html").write_text(
        '<a href="good.html#there"></a><a href="gone.html"></a><img src="gone.png"><script src="https://cdn.org/a.js">'
    )
    assert check.problems(tmp_path) == [
        "bad.html loads https://cdn.org/a.js",
        "bad.html links to good.html#there, and the page has no such anchor",
        "bad.html links to gone.html, which does not exist",
        "bad.html links to gone.png, which does not exist",
    ]
