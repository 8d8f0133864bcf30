"""Hooks of other packages are found by name, in the entry point group ``callgate.hooks``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import callgate.hooks
from callgate import Gate, tool
from callgate.errors import HookError

PACKAGES = {
    "acme-geofence": """
        [callgate.hooks]
        geofence = acme_geofence:Geofence
        made = acme_geofence:make
        broken = acme_geofence.missing:Hook
        text = acme_geofence:REGION
        shared = acme_geofence:Geofence
    """,
    "other-geofence": """
        [callgate.hooks]
        shared = other_geofence:Geofence
    """,
}
MODULE = """
from callgate.hooks import Hook, InvokeContext

REGION = "EU"

class Geofence(Hook):
    def __init__(self, region: str) -> None:
        self.region = region

    def will_authorize(self, ctx: InvokeContext) -> None:
        if ctx.user.tenant != self.region:
            ctx.abort("outside", code="outside")

def make() -> Geofence:
    return Geofence(REGION)
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two packages on the import path, with metadata as an installer writes it."""
    for package, points in PACKAGES.items():
        info = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("\n".join(line.strip() for line in points.splitlines()))
    (tmp_path / "acme_geofence.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("acme_geofence", None)


async def test_a_hook_of_another_package_is_loaded_by_name() -> None:
    @tool(effect="read")
    async def price(article: str) -> int:
        """Return a price."""
        return 1

    geofence = callgate.hooks.load("geofence")
    async with Gate([price], [geofence("EU")]) as gate:
        with pytest.raises(callgate.Denied, match="outside"):
            await gate.invoke("price", {"article": "A-1"})
    assert callgate.hooks.load("made")().region == "EU"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "geofense",
            r"no hook 'geofense'; did you mean 'geofence'\?; known: .*'callgate\.hooks'; install that package",
        ),
        ("shared", r"the hook 'shared' is registered by acme-geofence and other-geofence; uninstall all but one"),
        (
            "broken",
            r"'broken' of the package 'acme-geofence' .* 'acme_geofence\.missing:Hook': ModuleNotFoundError: .*; upgrade or",
        ),
        ("text", r"'text' of the package 'acme-geofence' .*: it is a str, not a class or a function.*; upgrade"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_what_to_do(name: str, says: str) -> None:
    with pytest.raises(HookError, match=says):
        callgate.hooks.load(name)


def test_a_package_that_is_listed_twice_is_one(tmp_path: Path) -> None:
    """As for an editable installation beside an older one."""
    info = tmp_path / "acme_geofence-1.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-geofence\nVersion: 1.1\n")
    (info / "entry_points.txt").write_text("[callgate.hooks]\ngeofence = acme_geofence:Geofence\n")
    assert callgate.hooks.load("geofence").__name__ == "Geofence"
