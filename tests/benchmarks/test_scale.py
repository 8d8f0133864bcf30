"""The page about scale tells the truth: what a call sends is counted anew, and compared with the tables there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import redis_commands, statements
from benchmarks.redis_commands import NoRedis
from benchmarks.workers_place import schemas
from callgate.jobs import EmbeddedJobs
from callgate.providers.stores.sql.jobs import SqlJobs
from tests.providers.stores.backends import schema

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "scale.md").read_text("utf-8")


def absent(lines: list[tuple[str, ...]]) -> list[str]:
    """Those that the page does not have, word for word."""
    assert len(lines) > 1
    return [line for line in statements.as_table(lines).splitlines() if line not in PAGE.splitlines()]


async def test_the_page_says_what_a_call_sends_to_sqlite(tmp_path: Path) -> None:
    """Issue 8: ``python -m benchmarks.statements`` prints the table."""
    assert absent(await statements.rows("sqlite", lambda: f"sqlite:///{tmp_path}/store.db")) == []


async def test_the_page_says_what_a_call_sends_to_postgresql() -> None:
    """Issue 8: by the embedded engine, and by Procrastinate, its own statements included."""
    with schema():  # skipped loudly where there is none
        pass
    with schemas() as make:
        counted = [await statements.rows("postgresql", make)]
        # On a busy machine, what belongs to the worker may look like a part of a call.
        while absent(counted[-1]) and len(counted) < 3:
            counted.append(await statements.rows("postgresql", make))
        assert absent(counted[-1]) == []


async def test_a_statement_more_or_a_commit_more_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a page that is not counted anew would go on saying what it said."""

    async def costs(name: str) -> list[statements.Cost]:
        return await statements.phases(EmbeddedJobs(0), f"sqlite:///{tmp_path}/{name}.db", "reads")

    before = await costs("before")
    take = SqlJobs.take

    async def dearer(self: SqlJobs, *facts: Any, **more: Any) -> Any:
        await self.renew("nobody", 0.0)
        await self.count()
        return await take(self, *facts, **more)

    monkeypatch.setattr(SqlJobs, "take", dearer)
    submit, run, decide, run_on = await costs("after")
    assert (submit, decide, run_on) == (before[0], before[2], before[3])
    assert (run.sent, run.wrote, run.flushed) == (before[1].sent + 2, before[1].wrote + 1, before[1].flushed + 1)


async def test_the_page_says_what_the_stock_hooks_send_to_redis() -> None:
    """Issue 8: ``python -m benchmarks.redis_commands`` prints the table."""
    try:
        found = await redis_commands.rows()
    except NoRedis as error:
        pytest.skip(f"NO REDIS: {error}")
    assert statements.as_table(found, redis_commands.HEAD) in PAGE
