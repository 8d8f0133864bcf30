"""Messages that others wrote into the queue of an engine: they run no job, also where the message has no id."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from callgate import ToolCall
from callgate.errors import StoreError
from callgate.providers.ids import LONGEST_ID
from callgate.runtime.hosts.celery import CeleryJobs
from callgate.runtime.hosts.celery.worker import _task
from callgate.runtime.jobs.jobs import JobQueue
from callgate.stores import JobState
from tests.providers.stores.backends import schema
from tests.runtime.jobs import engine_app
from tests.runtime.jobs.engine_app import ANN

NO_IDS: list[Any] = [None, 5, True, 1.5, [], ["id"], {"id": 1}, "\0", "\ud800", "x" * (LONGEST_ID + 1)]
UNKNOWN = ["", "nope", "../x", "' or 1=1 --"]
MESSAGES = [*NO_IDS, *UNKNOWN]


def no_retry(**_: Any) -> Exception:
    return AssertionError("the message is sent again")


def test_a_message_of_celery_runs_the_job_of_its_id_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None took the next job of any queue. The control has the id of the job, and runs it."""
    monkeypatch.setenv("CALLGATE_TEST_FOLDER", str(tmp_path))
    gate = engine_app.gate(CeleryJobs(engine_app.celery_app("memory://", "x")), store=f"sqlite:///{tmp_path}/store.db")
    deliver = _task(gate, gate.jobs.backend)  # type: ignore[arg-type]  # it is CeleryJobs
    message = SimpleNamespace(request=SimpleNamespace(delivery_info={}, retries=0), retry=no_retry)
    with gate.sync() as tools:
        job = tools._portal.run(lambda: gate.submit(ToolCall(id="c1", name="look", arguments={"n": 1}), user=ANN))

        def state() -> JobState:
            return tools._portal.run(job.status).state

        for id in MESSAGES:
            deliver(message, id)
            assert state() is JobState.QUEUED
        deliver(message, job.id)
        assert state() is JobState.DONE


async def test_a_row_of_procrastinate_runs_the_job_of_its_id_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, on a PostgreSQL, which compares no text with a number."""
    monkeypatch.setenv("CALLGATE_TEST_QUEUES", f"q-{uuid.uuid4().hex[:12]}")
    monkeypatch.setenv("CALLGATE_TEST_FOLDER", str(tmp_path))
    with schema() as address:
        async with engine_app.gate(engine_app.procrastinate(), store=address) as gate:
            backend: Any = gate.jobs.backend
            (queue,) = backend.queues
            call = ToolCall(id="c1", name="look", arguments={"n": 1})
            job = await gate.submit(call, user=ANN, queue=queue)
            context = SimpleNamespace(job=SimpleNamespace(attempts=0, queue=queue, priority=0))
            for id in MESSAGES:
                await backend._deliver(context, id)
                assert (await job.status()).state is JobState.QUEUED
            assert backend._tally.failures == 0
            await backend._deliver(context, job.id)
            assert (await job.status()).state is JobState.DONE


@pytest.mark.parametrize("id", [one for one in NO_IDS if one is not None], ids=lambda one: repr(one)[:20])
async def test_no_store_is_asked_for_an_id_that_none_can_keep(
    id: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine of another package may pass on what its message has."""
    gate = engine_app.gate(None, store=f"sqlite:///{tmp_path}/store.db")
    async with gate:
        queue: JobQueue = gate.jobs

        async def take(*_: Any, **__: Any) -> None:
            raise StoreError("it was asked")

        monkeypatch.setattr(type(gate.store.jobs), "take", take)
        assert await queue.run_invocation(id) is None
        with pytest.raises(StoreError, match="it was asked"):
            await queue.run_invocation("an id")
