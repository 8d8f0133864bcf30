"""``python -m callgate jobs``: what it shows of the jobs of a store, and what it does with those that are dead."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, JobHandle, Jobs, ToolCall, ToolContext, User, tool
from callgate.__main__ import COMMANDS
from callgate.runtime.commands.jobs import main
from callgate.stores import JobState
from tests.harness.gate_options import gate_options

ANN = User("ann", "acme")
OPEN = [False]


@tool(effect="irreversible")
async def send(to: str, ctx: ToolContext) -> str:
    """Send something, once the line is open."""
    if not OPEN[0]:
        ctx.retry_after(0, "closed")
    return f"sent to {to}"


def gate(address: str, **options: Any) -> Gate:
    made: dict[str, Any] = {
        "signing_keys": ["a key of the tests, long enough"],
        "job_options": Jobs(backoff=0.0, max_attempts=2),
        **options,
    }
    return Gate([send], allow_unguarded=True, store=address, **gate_options(**made))


@pytest.fixture
def address(tmp_path: Path) -> str:
    """A store with a job that is dead and one that waits."""
    OPEN[0] = False
    made = f"sqlite:///{tmp_path}/jobs.db"

    async def fill() -> None:
        async with gate(made) as g:
            job = await g.submit(ToolCall(id="c1", name="send", arguments={"to": "you"}), user=ANN)
            await job
            await g.submit(ToolCall(id="c2", name="send", arguments={"to": "me"}), user=ANN, delay=3600.0)

    asyncio.run(fill())
    return made


def jobs(*arguments: str, answer: str = "") -> tuple[int, str]:
    out = io.StringIO()
    return main(arguments, out, io.StringIO(answer)), out.getvalue()


def listed(address: str, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(jobs("list", address, "--json", *arguments)[1])
    return found


def test_list_shows_how_each_job_stands_and_how_many_there_are(address: str) -> None:
    """Issue 8: what is dead says why."""
    code, told = jobs("list", address)
    lines = told.splitlines()
    assert (code, lines[0].split()) == (0, ["id", "state", "tool", "tenant", "user", "attempts", "submitted", "reason"])
    assert [line.split()[1] for line in lines[1:3]] == ["queued", "dead"]
    assert "retry_later: retry_later, 2 times" in lines[2]
    assert lines[3:] == ["2 jobs", "of all tenants: 1 queued, 1 dead"]
    assert jobs("list", address, "--state", "done")[1].splitlines()[0] == "0 jobs"
    assert jobs("list", address, "--tenant", "other")[1].splitlines()[0] == "0 jobs"


def test_show_tells_all_of_one_job_by_the_beginning_of_its_id(address: str) -> None:
    (dead,) = listed(address, "--state", "dead")
    code, told = jobs("show", address, dead["id"][:6])
    facts = dict(line.split(maxsplit=1) for line in told.splitlines())
    assert (code, facts["state"], facts["tenant"], json.loads(facts["body"])["arguments"]) == (
        0,
        "dead",
        "acme",
        {"to": "you"},
    )
    assert json.loads(jobs("show", address, dead["id"], "--json")[1])["attempts"] == 2
    assert jobs("show", address, "abc")[0] == 1
    assert jobs("show", address, "x" * 32)[0] == 1


def test_what_is_dead_is_queued_again_and_runs_once_the_reason_is_gone(address: str) -> None:
    """Issue 8: nothing is lost by being given up."""
    (dead,) = listed(address, "--state", "dead")
    assert jobs("retry", address, dead["id"], answer="n\n")[0] == 1
    assert len(listed(address, "--state", "dead")) == 1
    assert jobs("retry", address, "--all", answer="y\n")[1].endswith("queued again: 1\n")
    assert jobs("retry", address, dead["id"], "--yes") == (
        1,
        f"{dead['id'][:12]} is queued; only a dead job can be queued again\n",
    )
    assert jobs("retry", address, "--all", "--yes") == (0, "queued again: 0\n")
    OPEN[0] = True

    async def ends() -> Any:
        async with gate(address) as g, asyncio.timeout(300):
            handle: JobHandle = g.job(dead["id"], user=ANN)
            return await handle

    assert asyncio.run(ends()).output == "sent to you"


def test_what_waits_is_cancelled_and_what_is_over_is_not(address: str, tmp_path: Path) -> None:
    """The user is shown the end only if it is signed, as the ends that workers write are."""
    keys = tmp_path / "keys"
    keys.write_text("a key of the tests, long enough")
    (waits,) = listed(address, "--state", "queued")
    (dead,) = listed(address, "--state", "dead")
    code, told = jobs("cancel", address, waits["id"][:8], "--yes")
    assert (code, "give --signing-keys FILE" in told) == (1, True)
    signed = ("--yes", "--signing-keys", str(keys))
    assert jobs("cancel", address, waits["id"][:8], *signed) == (0, f"{waits['id'][:12]} is cancelled\n")
    assert jobs("cancel", address, dead["id"], "--yes") == (1, f"{dead['id'][:12]} is dead\n")
    assert [job["state"] for job in listed(address, "--state", "cancelled")] == [JobState.CANCELLED]

    async def shown() -> JobState:
        async with gate(address) as g:
            return (await g.job(waits["id"], user=ANN).status()).state

    assert asyncio.run(shown()) is JobState.CANCELLED


def test_only_what_is_old_and_over_is_forgotten(address: str) -> None:
    assert jobs("prune", address, "--older-than", "1h", "--yes") == (0, "deleted: 0 jobs\n")
    assert len(listed(address)) == 2
    with pytest.raises(SystemExit):
        jobs("prune", address, "--older-than", "5s", "--yes")


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    code, told = jobs("list", f"sqlite:///{tmp_path}/none.db")
    assert (code, told.count("\n")) == (2, 1)
    assert told.startswith(
        f"cannot use the store: sqlite: there are no tables in {tmp_path}/none.db; check the address"
    )
    assert list(tmp_path.iterdir()) == []
    assert "jobs" in COMMANDS
