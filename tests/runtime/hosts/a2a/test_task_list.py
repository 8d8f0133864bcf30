"""``ListTasks`` in pages: signed cursors, bound to the user and the filter, stable when tasks come and go."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from unittest import mock

import pytest
from a2a import types as p
from a2a.helpers import new_data_part
from a2a.server.tasks import InMemoryTaskStore
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from callgate import User
from callgate.providers.signing import SigningKeys
from callgate.runtime.hosts.a2a import task_list
from callgate.runtime.hosts.a2a.messages import BadMessage
from callgate.runtime.hosts.a2a.task_list import TaskList
from callgate.runtime.hosts.a2a.task_store import TaskStore
from callgate.stores import MemoryStore
from tests.harness.cpu import loop_seconds
from tests.runtime.hosts.a2a.making import ANN, BEN, EVE
from tests.runtime.hosts.a2a.test_tasks import CANCELED, DONE, KEYS, WORKING, Clock, of, saved, task


class Tasks:
    """Tasks of Ann in a store in memory; each change takes a second."""

    def __init__(self) -> None:
        self.rows, self.clock = MemoryStore(), Clock()
        self.store = TaskStore(lambda: self.rows, KEYS, self.clock)
        self.versions: dict[str, Any] = {}
        self.shown: dict[str, p.Task] = {}

    async def write(self, id: str, state: Any = WORKING, context: str = "ctx", user: User = ANN) -> None:
        self.clock.now += 1
        one = task(id, state)
        one.context_id = context
        one.status.timestamp.FromSeconds(int(self.clock.now))
        missing = {} if id not in self.versions else {"version": self.versions[id]}
        self.versions[id] = await saved(self.store, one, user=user, **missing)
        self.shown[id] = one

    async def delete(self, id: str) -> None:
        """Delete a task that has ended, as the gate's pruning does."""
        self.rows.suspensions._suspensions.pop(("acme", f"a2a:{id}"))
        del self.shown[id]

    async def page(self, token: str = "", user: User = ANN, **filters: Any) -> p.ListTasksResponse:
        given: dict[str, Any] = {"page_size": 3, **filters}
        asked = p.ListTasksRequest(page_token=token, **given)
        return await self.store.list(asked, of(user))


CHANGES = st.lists(
    st.tuples(st.sampled_from(["add", "add ended", "delete", "change", "end"]), st.integers(0, 30)), max_size=6
)


async def listed_while_changing(counts: tuple[int, int], changes: list[list[tuple[str, int]]]) -> None:
    """Each task that stays as it was is listed once, in order, and none is listed twice."""
    tasks = Tasks()
    for number in range(sum(counts)):
        await tasks.write(f"t{number}")
    for number in range(counts[0]):
        await tasks.write(f"t{number}", DONE)
    steady, seen, token = set(tasks.shown), list[str](), ""
    while True:
        page = await tasks.page(token)
        seen += [one.id for one in page.tasks]
        token = page.next_page_token
        if not token:
            break
        for change, number in changes.pop(0) if changes else ():
            over = sorted(id for id, one in tasks.shown.items() if one.status.state == DONE)
            going = sorted(tasks.shown.keys() - set(over))
            if change.startswith("add"):
                id = f"new{len(tasks.versions)}"
                await tasks.write(id)
                await tasks.write(id, DONE if change == "add ended" else WORKING)
            elif change == "delete" and over:
                await tasks.delete(id := over[number % len(over)])
                steady.discard(id)
            elif change in {"change", "end"} and going:
                await tasks.write(id := going[number % len(going)], DONE if change == "end" else WORKING)
                steady.discard(id)
    assert len(seen) == len(set(seen)), "a task is listed twice"
    assert steady <= set(seen), "a task is missing"
    times = [tasks.shown[id].status.timestamp.ToNanoseconds() for id in seen if id in steady]
    assert times == sorted(times, reverse=True)


@given(st.tuples(st.integers(0, 9), st.integers(0, 9)), st.lists(CHANGES, max_size=5))
def test_every_task_is_listed_once_while_others_come_change_and_go(
    counts: tuple[int, int], changes: list[list[tuple[str, int]]]
) -> None:
    """Contract C8. Also where a statement reads less than a page, the list leaves out old tasks, and bytes end a page."""
    with mock.patch.multiple(task_list, SLICE=2, MAX_LISTED=30, MAX_SHOWN=250):
        asyncio.run(listed_while_changing(counts, changes))


class ByOffset(TaskList):
    """A list whose token is the number of tasks before the page."""

    async def page(self, params: Any) -> Any:
        start = int(params.page_token or 0)
        rows = [row async for row in self._read(None) if self._is_ours(row)]
        every = [self._task_of(row) for row in sorted(rows, key=task_list._head, reverse=True)]
        end = start + params.page_size
        more = str(end) if end < len(every) else ""
        return p.ListTasksResponse(tasks=every[start:end], next_page_token=more, total_size=len(every))


@pytest.mark.parametrize(("change", "fault"), [("add", "listed twice"), ("delete", "missing")])
async def test_control_paging_by_offset_repeats_or_loses_a_task(
    change: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await listed_while_changing((8, 0), [[(change, 7)]])
    monkeypatch.setattr("callgate.runtime.hosts.a2a.task_store.TaskList", ByOffset)
    with pytest.raises(AssertionError, match=fault):
        await listed_while_changing((8, 0), [[(change, 7)]])


FILTERS: list[dict[str, Any]] = [
    {},
    {"status": DONE},
    {"status": CANCELED},
    {"context_id": "other"},
    {"context_id": "other", "status": WORKING},
    {"status_timestamp_after": {"seconds": 1_000_020}},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
async def test_pages_are_those_of_the_sdks_own_store(filters: dict[str, Any]) -> None:
    """The same tasks, order and sizes; a task without a time is the last."""
    tasks, theirs = Tasks(), InMemoryTaskStore()
    for number in range(20):
        await tasks.write(f"t{number}", (WORKING, DONE)[number % 2], ("ctx", "other")[number % 3 == 0])
    await saved(tasks.store, untimed := task("untimed"))
    for one in (*tasks.shown.values(), untimed):
        await theirs.save(one, of(ANN))
    ours_token = their_token = ""
    while True:
        ours = await tasks.page(ours_token, **filters)
        expected = await theirs.list(p.ListTasksRequest(page_size=3, page_token=their_token, **filters), of(ANN))
        assert [one.id for one in ours.tasks] == [one.id for one in expected.tasks]
        assert (ours.total_size, ours.page_size) == (expected.total_size, expected.page_size)
        assert bool(ours.next_page_token) is bool(expected.next_page_token)
        ours_token, their_token = ours.next_page_token, expected.next_page_token
        if not ours_token:
            return


TOKENS: dict[str, tuple[dict[str, Any], User]] = {
    "another user": ({}, BEN),
    "another tenant": ({}, EVE),
    "another state": ({"status": WORKING}, ANN),
    "another context": ({"context_id": "ctx"}, ANN),
    "another time": ({"status_timestamp_after": {"seconds": 1}}, ANN),
}


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "control without the MAC"])
@pytest.mark.parametrize("what", TOKENS)
async def test_a_page_token_is_bound_to_its_user_and_filter(
    what: str, signed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks()
    for number in range(5):
        await tasks.write(f"t{number}")
    token = (await tasks.page()).next_page_token
    if not signed:
        monkeypatch.setattr(TaskList, "_bound", lambda *_: (b"",))
        token = (await tasks.page()).next_page_token
    filters, user = TOKENS[what]
    with pytest.raises(BadMessage, match="page token") if signed else contextlib.nullcontext():
        await tasks.page(token, user, **filters)
    assert len((await tasks.page(token, page_size=1)).tasks) == 1  # the size of a page may change


async def test_a_changed_guessed_or_foreign_page_token_is_refused() -> None:
    tasks = Tasks()
    for number in range(5):
        await tasks.write(f"t{number}")
    token = (await tasks.page()).next_page_token
    other = TaskStore(lambda: tasks.rows, SigningKeys(), tasks.clock)
    foreign = (await other.list(p.ListTasksRequest(page_size=3), of(ANN))).next_page_token or "x"
    for wrong in (
        "3",
        "t1",
        ".",
        token[1:],
        token[:-1],
        "x" + token,
        token.upper(),
        "\U0001f600",
        f"{token}.",
        foreign,
    ):
        with pytest.raises(BadMessage, match="page token"):
            await tasks.page(wrong)


async def test_a_list_has_the_tasks_that_were_started_last_and_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that end while a client reads the list push none out of it; too many of them stop it, loudly."""
    monkeypatch.setattr(task_list, "MAX_LISTED", 6)
    tasks = Tasks()
    for number in range(9):
        await tasks.write(f"t{number}", DONE)
    first = await tasks.page()
    assert (first.total_size, [one.id for one in first.tasks]) == (6, ["t8", "t7", "t6"])
    for number in range(6):
        await tasks.write(f"new{number}", DONE)
    assert [one.id for one in (await tasks.page(first.next_page_token)).tasks] == ["t5", "t4", "t3"]
    await tasks.write("new6", DONE)
    with pytest.raises(BadMessage, match="begin with the first page"):
        await tasks.page(first.next_page_token)


@pytest.mark.parametrize("limited", [True, False], ids=["limited", "control in one step"])
async def test_a_list_of_large_tasks_stops_the_loop_for_at_most_50_ms(
    limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that the SDK serialises in one step has few of them."""
    if not limited:
        monkeypatch.setattr(task_list, "PIECE", 10**9)
        monkeypatch.setattr(task_list, "MAX_SHOWN", 10**9)
    tasks = Tasks()
    large = new_data_part([0] * 4_200)
    for number in range(80):  # in one step, half as long again as the limit on a fast machine
        one = task(f"t{number}", WORKING)
        one.history.append(p.Message(message_id="m", parts=[large]))
        await saved(tasks.store, one)

    async def read() -> None:
        page = await asyncio.create_task(tasks.page(page_size=100))
        await asyncio.sleep(0)  # ends the step: the SDK serialises in the next one
        MessageToDict(page)

    worst = await loop_seconds(lambda: asyncio.create_task(read()), 0.05)
    assert (worst < 0.05) is limited
