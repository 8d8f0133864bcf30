"""A user who asks for more than their share: of the queue, of sessions and of lists."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from callgate import Gate, Jobs, RetryLater, ToolCall, User, tool
from callgate.runtime.jobs.jobs import JobHandle
from tests.runtime.hosts.a2a.making import KEY
from tests.runtime.hosts.mcp.test_access import INITIALIZE, WHOAMI, bearer, begun, desk_served

ANN, EVE = User("ann"), User("eve")


@tool(effect="read")
async def crawl(page: int) -> int:
    """Crawl."""
    return page


@pytest.mark.parametrize("place", ["memory", "file"])
@pytest.mark.parametrize("limit", [3, None], ids=["limited", "control without a limit"])
async def test_a_user_has_a_bounded_number_of_queued_jobs(limit: int | None, place: str, tmp_path: Path) -> None:
    """Others are served. A repeat is no further job, and a job that is cancelled makes room. A batch is added whole or not."""
    store = None if place == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    jobs = Jobs(max_per_user=limit)

    async with Gate([crawl], allow_unguarded=True, jobs=jobs, store=store, signing_keys=[KEY]) as gate:

        async def submit(page: int, user: User = EVE) -> JobHandle:
            return await gate.submit("crawl", {"page": page}, user=user, key=f"{page}", delay=3_600.0)

        async def submit_many(*pages: int) -> list[JobHandle]:
            calls = [ToolCall(id=f"{page}", name="crawl", arguments={"page": page}) for page in pages]
            return await gate.submit_many(calls, user=EVE, keys=[f"{page}" for page in pages], delay=3_600.0)

        first = [await submit(0), *await submit_many(1, 2)]
        if limit is None:
            assert len({one.id for one in [*first, await submit(3), *await submit_many(4, 5)]}) == 6
            return
        with pytest.raises(RetryLater, match="jobs of the user are queued already") as refused:
            await submit(3)
        assert "3" not in refused.value.public
        with pytest.raises(RetryLater):
            await submit_many(0, 3)
        assert [(await submit(page)).id for page in range(3)] == [one.id for one in first]
        assert (await submit(0, ANN)).id != first[0].id
        await first[0].cancel()
        with pytest.raises(RetryLater):
            await submit_many(3, 4)
        await submit(3)
        with pytest.raises(RetryLater):  # its key was freed by the cancellation, so it would be a further job
            await submit(0)


@pytest.mark.parametrize("limit", [3, 100], ids=["limited", "control with the limit above"])
async def test_a_user_has_a_bounded_number_of_mcp_sessions(limit: int) -> None:
    """A further session ends the least recently used idle one of the user, and no other's."""
    async with desk_served(max_user_sessions=limit) as (_, _, client):

        async def answers(session: str, user: str = "ann") -> bool:
            of = {**bearer(user), "mcp-session-id": session}
            return (await client.post("/mcp", json=WHOAMI, headers=of)).status_code == 200

        lea = await begun(client, "lea")
        first, second, third = [await begun(client, "ann") for _ in range(3)]
        assert await answers(first)
        fourth = await begun(client, "ann")
        assert [await answers(one) for one in (first, second, third, fourth)] == [True, limit == 100, True, True]
        assert await answers(lea, "lea")
        await client.delete("/mcp", headers={**bearer("ann"), "mcp-session-id": first})
        fifth = await begun(client, "ann")
        assert [await answers(one) for one in (third, fourth, fifth)] == [True] * 3


@pytest.mark.parametrize("limit", [2, 100], ids=["limited", "control with the limit above"])
async def test_a_user_whose_mcp_sessions_are_all_in_use_gets_no_further_one(limit: int) -> None:
    """A client that listens has a request under way. It is refused with 429, and others are served."""
    async with desk_served(max_user_sessions=limit) as (_, _, client), contextlib.AsyncExitStack() as listening:
        streams = []
        for _ in range(2):
            of = {**bearer("ann"), "mcp-session-id": await begun(client, "ann")}
            streams.append(await listening.enter_async_context(client.stream("GET", "/mcp", headers=of)))
        assert [one.status_code for one in streams] == [200, 200]
        refused = await client.post("/mcp", json=INITIALIZE, headers=bearer("ann"))
        assert refused.status_code == (429 if limit == 2 else 200)
        assert limit == 100 or "2 sessions in use" in refused.json()["detail"]
        assert await begun(client, "lea")
