"""Wires of other packages: found by entry point, loaded at their first use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from callgate import codec
from callgate.models import Client, WireError, codecs
from callgate.runtime.models import registry

WIRE = """
from callgate.runtime.models.openai_chat import ChatCodec


class Mine(ChatCodec):
    name = "mine"


CODEC = Mine()
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for packages, on the path; what is known of entry points is forgotten before and after."""
    monkeypatch.syspath_prepend(str(tmp_path))
    _forget()
    yield tmp_path
    _forget()
    for name in [name for name in sys.modules if name.startswith("wire_of_test")]:
        del sys.modules[name]


def _forget() -> None:
    registry.registered.cache_clear()
    registry.of_package.cache_clear()


def install(site: Path, package: str, entry_points: str, **modules: str) -> None:
    """Put a package into the folder as an installer would."""
    info = site / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text(f"[callgate.wires]\n{dedent(entry_points)}\n", "utf-8")
    for name, text in modules.items():
        (site / f"{name}.py").write_text(text, "utf-8")


@pytest.mark.parametrize("value", ["wire_of_test", "wire_of_test:CODEC"])
def test_a_wire_of_another_package_is_found_by_its_name(site: Path, value: str) -> None:
    """As a module that has a ``CODEC``, and as the codec itself."""
    install(site, "callgate-mine", f"mine = {value}", wire_of_test=WIRE)
    assert "mine" in codecs()
    assert "wire_of_test" not in sys.modules  # listing loads nothing
    assert codec("mine").name == "mine"
    assert codec("mine") is codec("mine")


async def test_a_client_of_such_a_wire_needs_no_more_than_its_codec(site: Path) -> None:
    install(site, "callgate-mine", "mine = wire_of_test", wire_of_test=WIRE)
    wire = codec("mine")

    class Mine(Client):
        codec = wire
        default_url = "http://127.0.0.1:1"
        needs_key = False

    async with Mine(model="m") as client:
        assert repr(client) == "Mine('http://127.0.0.1:1', model='m')"


def test_a_wire_of_callgate_cannot_be_replaced(site: Path) -> None:
    install(site, "callgate-mine", "anthropic = wire_of_test\nopenai = wire_of_test", wire_of_test=WIRE)
    assert codec("anthropic").name == "anthropic"
    assert codec("openai").name == "openai_chat"
    assert "openai" not in codecs()


def test_an_unknown_name_lists_the_wires_of_packages_too(site: Path) -> None:
    install(site, "callgate-mine", "mine = wire_of_test", wire_of_test=WIRE)
    with pytest.raises(WireError, match=r"no wire 'nine'; did you mean 'mine'\?; known: anthropic, .*mine, ") as caught:
        codec("nine")
    assert "entry point in the group 'callgate.wires'" in str(caught.value)


BROKEN = {
    "raise ValueError('of no use')": "ValueError: of no use",
    "import no_such_module_anywhere": "ModuleNotFoundError: No module named 'no_such_module_anywhere'",
    "OTHER = 1": "AttributeError: module 'wire_of_test_broken' has no attribute 'CODEC'",
    "class CODEC: name = 'mine'": "it is a class, not an instance",
    "CODEC = 7": "it has no name, translate, calls, results, reply, decoder, request",
    "from callgate.runtime.models.gemini import CODEC": "its name is 'gemini'",
}


@pytest.mark.parametrize("source", BROKEN)
def test_a_broken_wire_is_refused_with_its_package_and_a_remedy(site: Path, source: str) -> None:
    install(site, "callgate-mine", "mine = wire_of_test_broken", wire_of_test_broken=source)
    with pytest.raises(WireError) as caught:
        codec("mine")
    assert str(caught.value) == (
        "the wire 'mine' of the package 'callgate-mine' cannot be loaded from 'wire_of_test_broken': "
        f"{BROKEN[source]}; upgrade or repair callgate-mine, or uninstall it"
    )
    assert codec("gemini").name == "gemini"  # the others are not touched by it


def test_two_packages_with_one_wire_are_refused_by_name(site: Path) -> None:
    install(site, "callgate-b", "mine = wire_of_test", wire_of_test=WIRE)
    install(site, "callgate-a", "mine = wire_of_test")
    with pytest.raises(WireError, match="'mine' is registered by callgate-a and callgate-b; uninstall all but one"):
        codec("mine")


def test_importing_callgate_reads_no_entry_points(site: Path) -> None:
    """Nor does the use of a wire of its own."""
    install(site, "callgate-mine", "mine = wire_of_test_broken", wire_of_test_broken="raise SystemExit(3)")
    program = """
        from importlib import metadata

        read = metadata.entry_points

        def watched(**wanted):
            assert wanted.get("group") != "callgate.wires", "read too early"
            return read(**wanted)

        metadata.entry_points = watched
        import callgate

        callgate.codec("anthropic")
    """
    subprocess.run([sys.executable, "-c", dedent(program)], check=True, env={"PYTHONPATH": str(site)})
