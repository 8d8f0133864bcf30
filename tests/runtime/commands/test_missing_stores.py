"""Every command that takes the address of a store refuses one that is not there, and creates nothing."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest

from callgate import Gate, tool
from callgate.__main__ import COMMANDS
from callgate.hooks import Audit
from callgate.providers.stores.address import store_at
from callgate.runtime.commands.stores import main as check_tables
from tests.providers.stores.backends import place

KEY = "ab" * 32
VERBS = {
    "audit": [
        ["verify"],
        ["export", "--cursor", "c", "--file", "out.jsonl"],
        ["prune", "--older-than", "90d", "--export", "out.jsonl", "--signing-keys", "keys", "--yes"],
    ],
    "effects": [
        ["list"],
        ["show", KEY],
        ["settle", KEY, "--no-effect", "--note", "n", "--yes"],
        ["prune", "--older-than", "90d", "--yes"],
    ],
    "jobs": [
        ["list"],
        ["show", KEY],
        ["retry", "--all", "--yes"],
        ["cancel", KEY, "--yes"],
        ["prune", "--older-than", "90d", "--yes"],
    ],
}
"""Each verb that takes the address of a store, with the options that it needs."""
READING = {f"{command} {words[0]}": (command, words) for command, verbs in VERBS.items() for words in verbs}


def run(command: str, words: list[str], address: str) -> tuple[int, str]:
    out = StringIO()
    main = import_module(f"callgate.runtime.commands.{command}").main
    return main([words[0], address, *words[1:]], out), out.getvalue()


def text(path: Path) -> None:
    path.write_text("This is a text of more than sixteen characters.\n")


def foreign(path: Path) -> None:
    """A database of another application, in the journal mode that SQLite begins with."""
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE bookmarks (url)")
    base.commit()
    base.close()


NOT_THERE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no file": (lambda path: None, "no tables"),
    "no folder": (lambda path: path.parent.rmdir(), "no tables"),
    "empty": (Path.touch, "no tables"),
    "of another application": (foreign, "no tables"),
    "a folder": (Path.mkdir, "is a folder"),
    "a text": (text, "not a database"),
}
ADDRESSES = {
    "path": "sqlite:///{}",
    "uri": "sqlite:///file:{}?uri=true",
    "uri with mode": "sqlite:///file://{}?mode=rwc&uri=true",
}


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").write_text("a-key-of-the-tests-long-enough")


def test_the_matrix_has_every_verb_with_the_address_of_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    """A new verb fails here, or is added above."""
    for command, verbs in VERBS.items():
        with pytest.raises(SystemExit):
            import_module(f"callgate.runtime.commands.{command}").main(["--help"])
        offered = capsys.readouterr().out.partition("{")[2].partition("}")[0]
        assert set(offered.split(",")) == {words[0] for words in verbs}
    assert set(COMMANDS) - set(VERBS) == {"mcp", "pick", "stores", "worker"}, "these take no store, or may create it"


@pytest.mark.parametrize("address", ADDRESSES.values(), ids=ADDRESSES)
@pytest.mark.parametrize("verb", ["check", "show"])
def test_the_figures_and_the_check_of_a_mistyped_store_create_nothing(verb: str, address: str, tmp_path: Path) -> None:
    out = StringIO()
    assert check_tables([verb, "--store", address.format(tmp_path / "typo.db")], out) == {"check": 1, "show": 2}[verb]
    assert "no tables" in out.getvalue()
    assert list(contents(tmp_path)) == [str(tmp_path / "keys")]


@pytest.mark.parametrize("what", NOT_THERE)
@pytest.mark.parametrize("address", ADDRESSES.values(), ids=ADDRESSES)
@pytest.mark.parametrize("verb", READING)
def test_a_store_that_is_not_there_is_refused_and_not_created(
    verb: str, address: str, what: str, tmp_path: Path
) -> None:
    make, said = NOT_THERE[what]
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "typo.db"
    make(path)
    before = contents(tmp_path)
    code, told = run(*READING[verb], address.format(path))
    assert (code, told.count("\n"), said in told) == (2, 1, True), told
    assert "; " in told, "it says what to do"
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "address", ["memory://", "sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"]
)
@pytest.mark.parametrize("verb", READING)
def test_a_store_in_memory_has_nothing_to_read(verb: str, address: str) -> None:
    code, told = run(*READING[verb], address)
    assert (code, told.count("\n")) == (2, 1)
    assert "in memory" in told or "no tables" in told
    assert [path.name for path in Path.cwd().iterdir()] == ["keys"]


@pytest.mark.parametrize("verb", READING)
def test_a_database_of_postgresql_without_tables_is_refused_and_left_alone(verb: str, tmp_path: Path) -> None:
    with place("postgresql", tmp_path, bare=True) as (address, _):
        code, told = run(*READING[verb], address)
        assert (code, "there are no tables" in told) == (2, True)
        out = StringIO()
        assert check_tables(["check", "--store", address], out) == 1
        assert "no tables" in out.getvalue()


@pytest.mark.parametrize("verb", READING)
def test_older_tables_are_refused_and_not_migrated(verb: str, tmp_path: Path) -> None:
    file = tmp_path / "old.db"
    make_store(file)
    base = sqlite3.connect(file)
    base.execute("UPDATE callgate_schema SET version_num = '0001', serves = '0001'")
    base.commit()
    base.close()
    code, told = run(*READING[verb], f"sqlite:///{file}")
    assert (code, "revision 0001" in told, "stores upgrade" in told) == (2, True, True)


@tool(effect="read")
async def add(a: int) -> int:
    """Add."""
    return a


def make_store(file: Path) -> None:
    async def make() -> None:
        store = store_at(f"sqlite:///{file}")
        await store.open()
        await store.close()

    asyncio.run(make())


def test_a_store_that_is_there_is_read(tmp_path: Path) -> None:
    """The control: no verb refuses everything."""
    make_store(tmp_path / "store.db")
    codes = {verb: run(*READING[verb], f"sqlite:///{tmp_path / 'store.db'}")[0] for verb in READING}
    nothing_found = {"audit verify", "effects show", "effects settle", "jobs show", "jobs cancel"}
    assert codes == {verb: int(verb in nothing_found) for verb in READING}


def test_an_audit_log_that_is_not_there_has_not_no_problems(tmp_path: Path) -> None:
    """A namespace that was mistyped was verified without a problem, with exit code 0."""
    address = f"sqlite:///{tmp_path / 'store.db'}"

    async def call() -> None:
        async with Gate([add], [Audit()], store=address) as gate:
            await gate.invoke(add, {"a": 1})

    asyncio.run(call())
    code, told = run("audit", ["verify"], address)
    assert (code, "no problems" in told) == (0, True)
    code, told = run("audit", ["verify", "--namespace", "mistyped"], address)
    assert (code, "no audit log" in told, "no problems" in told) == (1, True, False)


def test_a_store_that_cannot_be_written_is_refused_with_the_reason(tmp_path: Path) -> None:
    make_store(tmp_path / "store.db")
    code, told = run("audit", ["verify"], f"sqlite:///file:{tmp_path / 'store.db'}?mode=ro&uri=true")
    assert (code, "readonly database; give a file" in told) == (2, True)


@pytest.mark.parametrize("keys", [b"", b" \n\n", b"\xff\xfe"], ids=["empty", "blank", "binary"])
@pytest.mark.parametrize("verb", ["audit verify", "audit prune"])
def test_a_file_without_signing_keys_is_refused(verb: str, keys: bytes, tmp_path: Path) -> None:
    """Signatures would be left unchecked."""
    make_store(tmp_path / "store.db")
    (tmp_path / "keys").write_bytes(keys)
    command, words = READING[verb]
    asked = words if "--signing-keys" in words else [*words, "--signing-keys", "keys"]
    code, told = run(command, asked, f"sqlite:///{tmp_path / 'store.db'}")
    assert (code, "no signing keys" in told) == (2, True)
