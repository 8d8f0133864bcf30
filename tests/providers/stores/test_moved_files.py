"""The file of a SQLite store that is removed, replaced or reached by another name while a gate has it open."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from callgate import Gate, ToolCall, User, tool
from callgate.errors import StoreError
from callgate.hooks import Audit
from callgate.providers.stores.base import Grant
from callgate.providers.stores.sql.database import urls as sql_urls
from callgate.providers.stores.sql.database.engines import OpenedFile
from callgate.providers.stores.sql.store import SqlStore

RAN: list[str] = []


@tool(effect="irreversible", key=("order",))
async def refund(order: str) -> str:
    """Refund."""
    RAN.append(order)
    return order


def a_gate(address: str) -> Gate:
    RAN.clear()
    return Gate([refund], [Audit()], store=address, signing_keys=["k" * 32], allow_unguarded=True)


async def ordered(gate: Gate, order: str) -> str | None:
    """Refund an order; return the code of the error."""
    call = ToolCall(name="refund", arguments={"order": order})
    result = await gate.call(call, user=User("ann"))
    return None if result.error is None else result.error.code


def removed(file: Path) -> None:
    for one in file.parent.glob(f"{file.name}*"):
        one.unlink()


def moved(file: Path) -> None:
    file.rename(file.with_name("old.db"))


def tidied(*ends: str) -> Callable[[Path], None]:
    """An operator takes the files beside it for left-overs. A process that opens the store then made the effects again."""

    def tidy(file: Path) -> None:
        for end in ends:
            file.with_name(f"{file.name}{end}").unlink()

    return tidy


def replaced(file: Path) -> None:
    shutil.copy(file, file.with_name("backup.db"))
    file.with_name("backup.db").replace(file)


def folder_moved(file: Path) -> None:
    file.parent.rename(file.parent.with_name("elsewhere"))
    file.parent.mkdir()


WAYS: list[Callable[[Path], None]] = [
    removed,
    moved,
    replaced,
    folder_moved,
    tidied("-wal", "-shm"),
    tidied("-wal"),
    tidied("-shm"),
]


@pytest.mark.parametrize("way", WAYS)
async def test_no_effect_runs_whose_record_nobody_would_find(way: Callable[[Path], None], tmp_path: Path) -> None:
    """The gate ran effects and recorded them in a file without a name; a gate that opened the path ran them again."""
    file = tmp_path / "data" / "a.db"
    file.parent.mkdir()
    async with a_gate(f"sqlite:///{file}") as gate:
        assert await ordered(gate, "before") is None
        way(file)
        assert await ordered(gate, "after") == "not_recorded"
        with pytest.raises(StoreError, match="removed or replaced while the store had it open"):
            await gate.store.consents.find("", "ann", "refund", "s")
        with pytest.raises(StoreError, match="removed or replaced"):
            async with gate.store.transaction():
                pass
        assert RAN == ["before"]
    async with a_gate(f"sqlite:///{file}") as gate:
        assert await ordered(gate, "after") is None
    assert RAN == ["after"]


async def test_a_file_that_is_put_back_is_used_again(tmp_path: Path) -> None:
    async with a_gate(f"sqlite:///{tmp_path}/a.db") as gate:
        (tmp_path / "a.db").rename(tmp_path / "b.db")
        assert await ordered(gate, "one") == "not_recorded"
        (tmp_path / "b.db").rename(tmp_path / "a.db")
        assert await ordered(gate, "one") is None


async def test_control_without_the_look_at_the_path_an_effect_runs_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpenedFile, "is_there", lambda self: True)
    address = f"sqlite:///{tmp_path}/a.db"
    async with a_gate(address) as gate:
        await ordered(gate, "one")
        removed(tmp_path / "a.db")
        await ordered(gate, "two")
        before = [*RAN]
        async with a_gate(address) as other:
            await ordered(other, "two")
    assert before + RAN == ["one", "two", "two"]


@pytest.mark.parametrize("address", ["sqlite:///a.db", "sqlite:///file:a.db?uri=true"])
async def test_a_relative_path_is_that_of_the_folder_in_which_the_store_opened(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon changes its folder; connections that opened later made a second file."""
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path)
    async with a_gate(address) as gate:
        monkeypatch.chdir(tmp_path / "later")
        assert [*await asyncio.gather(*(ordered(gate, str(n % 3)) for n in range(12)))] == [None] * 12
        job = await gate.submit(ToolCall(name="refund", arguments={"order": "job"}), user=User("ann"))
        assert (await job).output == "job"
    assert not list((tmp_path / "later").iterdir())
    assert len(RAN) == 4


@pytest.mark.parametrize("name", ["a b.db", "a#b.db", "a?b.db", "a%20b.db", "a%zz.db", "ä'b&c=d;e+.db", ":memory:x"])
@pytest.mark.parametrize("form", ["sqlite:///{}", "sqlite:///file:{}?uri=true", "sqlite:///file://{}?uri=true"])
async def test_an_address_is_decoded_once(name: str, form: str, tmp_path: Path) -> None:
    """SQLite decoded a name with ``file:`` once more: ``a%23b.db`` and ``a%23c.db`` were the file ``a``."""
    store = SqlStore(form.format(quote(f"{tmp_path}/{name}")))
    await store.open()
    assert await store.figures()
    await store.close()
    assert os.listdir(tmp_path) == [name]  # noqa: PTH208


async def test_every_name_of_one_file_is_one_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    (tmp_path / "sub").mkdir()
    names = ["a.db", "./a.db", "sub/../a.db", "link.db", f"{tmp_path}/a.db", f"file:{tmp_path}/a.db?uri=true"]
    async with AsyncExitStack() as gates:
        opened = [await gates.enter_async_context(a_gate(f"sqlite:///{name}")) for name in names]
        assert {*await asyncio.gather(*(ordered(gate, "one") for gate in opened for _ in range(4)))} == {None}
    assert RAN == ["one"]


@pytest.mark.parametrize("name", ["a.db", "b.db"])
async def test_a_file_with_two_names_is_refused_at_either(name: str, tmp_path: Path) -> None:
    """Each name has a file ``-wal`` of its own: of two processes with two names, both ran each effect."""
    async with a_gate(f"sqlite:///{tmp_path}/a.db"):
        (tmp_path / "b.db").hardlink_to(tmp_path / "a.db")
        with pytest.raises(StoreError, match=r"has 2 names \(hard links\)"):
            await SqlStore(f"sqlite:///{tmp_path}/{name}").open()
    (tmp_path / "b.db").unlink()
    async with a_gate(f"sqlite:///{tmp_path}/a.db") as gate:
        assert await ordered(gate, "one") is None


@pytest.mark.parametrize("mounted", [True, False])
async def test_a_file_that_is_mounted_without_its_folder_is_refused(
    mounted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container with such a file has the files beside it for itself, and loses them with the container."""
    mounts, file = tmp_path / "mounts", tmp_path / "a b.db"
    path = str(file if mounted else file.parent).replace(" ", r"\040")
    mounts.write_text(f"42 27 254:0 /data {path} rw,relatime - ext4 /dev/vda rw\n")
    monkeypatch.setattr(sql_urls, "_MOUNTS", mounts)
    store = SqlStore(f"sqlite:///{file}")
    file.touch()
    if mounted:
        with pytest.raises(StoreError, match="mount the folder"):
            await store.open()
    else:
        await store.open()
        await store.close()


IN_MEMORY = [":memory:?cache=shared&", ":memory:?", "x?mode=memory&", "x?mode=memory&cache=shared&", "/x?vfs=memdb&"]


@pytest.mark.parametrize("name", IN_MEMORY)
async def test_a_file_in_memory_is_no_durable_store_and_one_database(name: str) -> None:
    """Each connection had a database of its own, and production accepted it as durable."""
    made: list[Any] = [SqlStore(f"sqlite:///file:{name}uri=true") for _ in range(2)]
    for store in made:
        assert not store.durable
        await store.open()
    await asyncio.gather(*(made[0].consents.grant("", Grant("ann", "refund", str(n), 0.0, None)) for n in range(20)))
    found = [
        await asyncio.gather(*(store.consents.find("", "ann", "refund", str(n)) for n in range(20))) for store in made
    ]
    assert all(found[0])
    assert not any(found[1])
    for store in made:
        await store.close()
