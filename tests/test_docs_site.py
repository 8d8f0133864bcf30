"""The site of the docs: every page has its place, every public name its reference, and it builds without a warning."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Union, get_origin

import pytest

import callgate
from callgate import errors
from scripts.docs_site import BESIDE, DOCS, ROOT, for_the_site, lay_out, pages

DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)
REFERENCE = sorted((DOCS / "reference").glob("*.md"))
NAV = (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")[1]
NO_ZENSICAL = "NO ZENSICAL: the site is not built here; make docs installs what it takes"
OUTSIDE = {"Provide"}  # another library's; the page of the providers tells what it is


def find(path: str) -> Any:
    """What a dotted path names."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:]:
            found = getattr(found, name)
        return found
    raise LookupError(path)


@pytest.mark.parametrize("page", REFERENCE, ids=lambda page: page.stem)
def test_every_entry_of_the_reference_is_there_and_has_a_docstring(page: Path) -> None:
    for path in DIRECTIVE.findall(page.read_text("utf-8")):
        found = find(path)
        assert found.__doc__ or get_origin(found) is Union, path  # an alias cannot have one


def test_every_public_name_is_in_the_reference() -> None:
    named = {path for page in REFERENCE for path in DIRECTIVE.findall(page.read_text("utf-8"))}
    shown = {path.removeprefix("callgate.") for path in named}
    shown |= {name for name in vars(callgate)["__all__"] if getattr(errors, name, None) is getattr(callgate, name)}
    assert "callgate.errors" in named
    assert [name for name in vars(callgate)["__all__"] if name not in shown | OUTSIDE] == []
    assert all(f"`callgate.{name}`" in (DOCS / "reference" / "providers.md").read_text("utf-8") for name in OUTSIDE)


def test_every_page_has_its_place_in_the_navigation_once() -> None:
    placed = re.findall(r": (\S+\.md)$", NAV, re.MULTILINE)
    assert sorted(placed) == sorted(pages().values()), "give the page a line under `nav` in mkdocs.yml"


def test_links_of_the_site_lead_to_its_pages_or_become_text() -> None:
    """What looks like a link in code is left alone."""
    page = DOCS / "how-to" / "write-a-hook.md"
    text = "[a](../../SECURITY.md#x) [b](../limits.md) [c](../../tests/conftest.py) [d](https://e.org) `f[0](g)`"
    assert for_the_site(page, text) == "[a](../SECURITY.md#x) [b](../limits.md) c [d](https://e.org) `f[0](g)`"
    code = "```python\nhandlers[0](event)\n```"
    assert for_the_site(page, code) == code
    assert for_the_site(ROOT / BESIDE[0], "[docs](docs/index.md)") == "[docs](index.md)"


def test_the_pages_are_laid_out_with_every_link_leading_somewhere(tmp_path: Path) -> None:
    lay_out(tmp_path)
    laid = sorted(tmp_path.rglob("*.md"))
    assert len(laid) == len(pages())
    for page in laid:
        prose = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for link in re.findall(r"(?<!!)\[[^\]]+\]\(([^)\s#]+)", re.sub(r"`[^`\n]+`", "", prose)):
            assert "://" in link or (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_tutorial_is_one_program_that_prints_what_it_says(tmp_path: Path) -> None:
    """As a reader follows it: every block at the end of one file, which is then run."""
    page = (DOCS / "tutorial" / "first-tool-call.md").read_text("utf-8")
    blocks = re.findall(r"^```(python|text)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    desk = tmp_path / "desk.py"
    desk.write_text("\n\n".join(text for kind, text in blocks if kind == "python"), "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(desk)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "".join(text for kind, text in blocks if kind == "text")


@pytest.mark.skipif(importlib.util.find_spec("zensical") is None, reason=NO_ZENSICAL)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Every entry of the reference is rendered, and the diagram is one."""
    for name in ("src", "docs", "runtime", "hooks", "tools", "providers"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text("utf-8"), "utf-8")
    lay_out(tmp_path / "build" / "docs")
    done = subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--clean", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "site"
    for page in REFERENCE:
        html = (site / "reference" / f"{page.stem}.html").read_text("utf-8")
        entries = DIRECTIVE.findall(page.read_text("utf-8"))
        assert [path for path in entries if f'id="{path}"' not in html] == []
    for drawn in ("reference/stages", "explanation/effects"):
        assert 'class="mermaid"' in (site / f"{drawn}.html").read_text("utf-8")
