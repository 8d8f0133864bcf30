"""The how-to pages of hosts show the code of the example services, and not something like it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
EMBEDDING = sorted((ROOT / "docs" / "how-to").glob("embed-in-*.md"))
PAGES = [ROOT / "docs" / "how-to" / "build-a-service.md", *EMBEDDING]
SHOWN = re.compile(r"```python\n# (examples/\S+)\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_of_an_example_is_the_example(page: Path) -> None:
    shown = SHOWN.findall(page.read_text("utf-8"))
    assert shown
    for name, code in shown:
        assert code in (ROOT / name).read_text("utf-8"), name


def test_every_service_has_a_page_and_a_command() -> None:
    shown = {name for page in PAGES for name, _ in SHOWN.findall(page.read_text("utf-8"))}
    services = {Path(name).parts[1] for name in shown}
    folders = {folder.name for folder in (ROOT / "examples").glob("*_service")}
    assert services == folders | {"billing"}
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert [name for name in services if f"example-{name.removesuffix('_service')}:" not in makefile] == []
