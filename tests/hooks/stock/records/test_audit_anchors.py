"""Anchors outside of the store: they show that a whole database was put back."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate import Gate, User, tool
from callgate.errors import StoreError
from callgate.hooks import AnchorEndpoint, AnchorFile, Audit
from callgate.runtime.commands.audit import main as audit_command

KEY = "a signing key of the tests"


@tool(effect="read")
async def look(n: int) -> int:
    """Look."""
    return n


async def work(file: Path, audit: Audit) -> None:
    async with Gate([look], [audit], allow_unguarded=True, store=f"sqlite:///{file}", signing_keys=[KEY]) as gate:
        for n in range(3):
            await gate.call("look", {"n": n}, user=User("ann"))


async def test_a_database_that_was_put_back_is_found_by_a_file_of_anchors(tmp_path: Path) -> None:
    """I17. Without the file, the control, the old state verifies."""
    file, backup, anchors = (tmp_path / name for name in ("a.db", "b.db", "anchors.jsonl"))
    await work(file, Audit(on_anchor=AnchorFile(anchors)))
    with sqlite3.connect(file) as source, sqlite3.connect(backup) as target:
        source.backup(target)
    await work(file, Audit(on_anchor=AnchorFile(anchors)))
    assert (anchors.stat().st_mode & 0o777, len(anchors.read_text().splitlines())) == (0o600, 2)

    async def verified(database: Path, *more: str) -> int:
        return await asyncio.to_thread(audit_command, ["verify", f"sqlite:///{database}", *more], StringIO())

    known = ("--anchors", str(anchors))
    assert [await verified(file, *known), await verified(backup), await verified(backup, *known)] == [0, 0, 1]


async def test_an_endpoint_gets_each_anchor_and_its_errors_say_no_value() -> None:
    got: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        got.append((request.headers["authorization"], json.loads(request.content)))
        return httpx.Response(200 if len(got) == 1 else 403, text="secret")

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        send = AnchorEndpoint("https://log.example/anchors", {"authorization": "Bearer t"}, client=client)
        await send("s", 7, "hash", 1.5)
        assert got == [("Bearer t", {"segment": "s", "number": 7, "hash": "hash", "at": 1.5})]
        with pytest.raises(StoreError, match=r"status 403$"):
            await send("s", 8, "hash", 2.5)

    def fail(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("10.0.0.1 refused")

    async with httpx.AsyncClient(transport=httpx.MockTransport(fail)) as client:
        with pytest.raises(StoreError, match=r"ConnectError$"):
            await AnchorEndpoint("https://log.example/anchors", client=client)("s", 1, "h", 1.0)
