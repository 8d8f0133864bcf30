"""Celery as the engine, on real brokers: whatever becomes of a message, its job has one outcome and one effect."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import uuid
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from callgate import Gate, JobHandle, Outcome, RegistrationError, ToolCall
from callgate.errors import StoreError
from callgate.runtime.hosts.celery import CeleryJobs, register
from callgate.runtime.hosts.celery.backend import SLACK, TASK
from callgate.runtime.hosts.celery.sender import SenderPool
from callgate.runtime.hosts.celery.worker import MAX_RETRIES, _task, check_queues
from callgate.runtime.options.job_engine import Tally
from callgate.stores import JobState
from callgate.testing import FakeClock
from tests.providers.stores.backends import schema
from tests.runtime.jobs import engine_app
from tests.runtime.jobs.engine_app import ANN, LEASE, effects, until
from tests.runtime.jobs.engine_brokers import KINDS, QUEUES, Broker, broker

Brokers = dict[str, Broker]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Generator[Brokers]:
    """Each broker with a worker: they take long to begin, so that all tests share them."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as environment:
        environment.setenv("CALLGATE_TEST_FOLDER", str(tmp_path_factory.mktemp("effects")))
        found = {kind: stack.enter_context(broker(kind)) for kind in KINDS}
        for one in found.values():
            one.start()
        yield found


@pytest.fixture(params=KINDS)
def one(request: pytest.FixtureRequest, brokers: Brokers) -> Broker:
    return brokers[request.param]


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Where no broker is wanted."""
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def who() -> str:
    """Whose effects are this test's."""
    return f"w-{uuid.uuid4().hex[:12]}"


@asynccontextmanager
async def a_gate(one: Broker, app: Any = None, **options: Any) -> AsyncGenerator[Gate]:
    jobs = CeleryJobs(app or one.app, queues=QUEUES, queue_prefix=f"{one.prefix}.")
    async with engine_app.gate(jobs, **{"store": one.store, **options}) as gate, asyncio.timeout(300):
        if "clock" in options:  # the test moves it, and sweeps itself: no sweep in real time comes in between
            await gate._lifespan.background.stop()
        yield gate


async def submit(gate: Gate, name: str, arguments: dict[str, Any], **options: Any) -> JobHandle:
    return await gate.submit(ToolCall(id="c1", name=name, arguments=arguments), user=ANN, **options)


# ---------------------------------------------------------------------- in a worker


async def test_what_is_submitted_runs_in_a_worker_process(one: Broker, who: str) -> None:
    """Design 8. Under one key it is one job, and a job that was put off is delivered again (contract 88)."""
    async with a_gate(one) as gate:
        jobs = [await submit(gate, "pay", {"who": f"{who}-{n}"}) for n in range(8)]
        same = [await submit(gate, "pay", {"who": who}, key=who) for _ in range(3)]
        put_off = await submit(gate, "busy", {"n": 2, "who": f"{who}-busy"})
        later = await submit(gate, "look", {"n": 7}, delay=0.3)
        assert [(await job).output for job in jobs] == [f"paid {who}-{n}" for n in range(8)]
        assert {(job.id, (await job).output) for job in same} == {(same[0].id, f"paid {who}")}
        assert ((await put_off).output, (await put_off.status()).attempts) == (3, 3)
        assert (await later).output == 7
        status = await later.status()
        assert (status.attempts, status.ended_at is not None and status.ended_at >= status.run_at) == (1, True)
    assert effects().count(who) == 1


async def test_time_limits_of_celery_do_not_end_calls(one: Broker, who: str) -> None:
    """Design 5: deadlines do. The control is a task of Celery's in the same worker, which began later and is stopped."""

    async def has_begun() -> bool:
        return f"{who} began" in effects()

    async with a_gate(one) as gate:
        job = await submit(gate, "outlast", {"who": who})
        await until(has_begun)
        one.app.send_task("stopped", args=[who], queue=f"{one.prefix}.default")
        assert (await job).output == who
    assert effects().count(f"{who} began") == 1


@pytest.mark.parametrize("killed", ["process", "worker"])
async def test_what_was_killed_in_the_middle_is_run_by_another_process(one: Broker, who: str, killed: str) -> None:
    """I3, I4. Between the effect and its record; the control, the same tool without a claim, has its effect twice."""
    claimed, control = f"{who}-claimed", f"{who}-control"

    async def both_have_begun() -> bool:
        return {claimed, control} <= set(effects())

    async with a_gate(one) as gate:
        jobs = [await submit(gate, name, {"who": of}) for name, of in (("claimed", claimed), ("unclaimed", control))]
        await until(both_have_begun)
        if killed == "worker":
            one.kill()
            one.start()
        for job, of, outcome in zip(jobs, (claimed, control), (Outcome.UNKNOWN, Outcome.SUCCESS), strict=True):
            if killed == "process":  # the other lives on: it does not take what was its sibling's for its own
                os.kill(engine_app.ran_in(of), signal.SIGKILL)
            assert (await job).outcome is outcome
        assert [(await job.status()).attempts for job in jobs] == [2, 2]
    assert [effects().count(of) for of in (claimed, control)] == [1, 2]


async def test_what_was_never_sent_is_sent_by_whoever_looks_after_the_store(
    one: Broker, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I20: the broker is away as the call is submitted, which the submitter need not know. The workers' gates find it."""
    away = engine_app.celery_app("redis://127.0.0.1:1/0", one.prefix)
    async with a_gate(one, away) as gate:
        job = await submit(gate, "pay", {"who": who})
        assert (await job).output == f"paid {who}"
    away.close()
    assert f"job.not_sent job='{job.id}'" in caplog.text
    assert effects().count(who) == 1


class Delivered(Exception):
    """A message as the task sees it; raised where it is to be delivered once more, after some seconds."""

    def __init__(self, *, redelivered: bool, retries: int = 0) -> None:
        self.request = SimpleNamespace(retries=retries, delivery_info={"redelivered": redelivered})
        self.countdown: float | None = None

    def retry(self, *, countdown: float) -> Delivered:
        self.countdown = countdown
        return self


def countdown_of(message: Delivered, deliver: Any, id: str) -> float | None:
    with suppress(Delivered):
        deliver(message, id)
    return message.countdown


def test_a_message_comes_again_only_where_its_job_may_have_to_run(monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    """I20. Delivered again before the lease of a dead process is over, or while the store fails, and not for ever."""
    app = engine_app.celery_app("memory://", "x")
    clock, again = FakeClock(), LEASE * 0.6 + SLACK
    gate = engine_app.gate(CeleryJobs(app), store=store, clock=clock)
    deliver = _task(gate, gate.jobs.backend)  # type: ignore[arg-type]  # it is CeleryJobs
    with gate.sync() as tools:
        job = tools._portal.run(lambda: gate.submit(ToolCall(id="c1", name="look", arguments={"n": 1}), user=ANN))
        now = clock.time()
        assert tools._portal.run(lambda: gate.store.jobs.take("dead", now, now + LEASE, id=job.id)) is not None
        for message, countdown in (
            (Delivered(redelivered=False), None),  # a second message, of a job that somebody runs
            (Delivered(redelivered=True), again),
            (Delivered(redelivered=True, retries=MAX_RETRIES), None),
        ):
            assert countdown_of(message, deliver, job.id) == countdown
        clock.advance(LEASE + 1.0)
        with monkeypatch.context() as broken:

            async def fails(*_: Any, **__: Any) -> None:
                raise StoreError("the disk is full")

            broken.setattr(gate.store.jobs, "take", fails)
            assert countdown_of(Delivered(redelivered=False), deliver, job.id) == again
            assert countdown_of(Delivered(redelivered=False, retries=MAX_RETRIES), deliver, job.id) is None
        assert countdown_of(Delivered(redelivered=True), deliver, job.id) is None
        assert tools._portal.run(job.status).state is JobState.DONE
        assert countdown_of(Delivered(redelivered=False), deliver, job.id) is None
    app.close()


# ---------------------------------------------------------------------- in the broker


@pytest.fixture(scope="module")
def unshared() -> Generator[str]:
    """A store that no worker looks after."""
    with schema() as address:
        yield address


async def test_a_message_is_json_and_holds_the_id_and_nothing_else(one: Broker, who: str, unshared: str) -> None:
    """B8. Urgent ones come first: higher priorities, as far as the broker tells them apart."""
    async with a_gate(one, store=unshared) as gate:
        asked = [("usual", 0), ("low", -4), ("high", 5)]
        jobs = {name: await submit(gate, "pay", {"who": who}, queue="idle", priority=p) for name, p in asked}
        messages = await one.messages(3)
        assert {message.content_type for message in messages} == {"application/json"}
        bodies = [json.loads(message.body) for message in messages]
        assert [body[0] for body in bodies] == [[jobs[name].id] for name in ("high", "usual", "low")]
        assert {json.dumps(body[1]) for body in bodies} == {"{}"}
        assert {message.headers["task"] for message in messages} == {TASK}
        assert not any(who in str((message.headers, message.properties)) for message in messages)
        for job in jobs.values():
            assert await job.cancel()
            assert await gate.jobs.run_invocation(job.id) is None  # its message may come all the same
            assert (await job).outcome is Outcome.CANCELLED
    assert who not in effects()


async def test_what_is_to_run_much_later_waits_in_the_store(one: Broker, unshared: str) -> None:
    """A message with a time is held in the memory of a worker: only short waits are."""
    clock = FakeClock()
    async with a_gate(one, clock=clock, store=unshared) as gate:
        soon = await submit(gate, "look", {"n": 1}, queue="idle", delay=LEASE / 2)
        late = await submit(gate, "look", {"n": 2}, queue="idle", delay=3600.0)
        (message,) = await one.messages(1)
        assert json.loads(message.body)[0] == [soon.id]
        assert message.headers["eta"] is not None
        assert await soon.cancel()
        await gate.maintain()
        clock.advance(3601.0)
        assert await one.messages(0) == []
        await gate.maintain()
        (message,) = await one.messages(1)
        assert (json.loads(message.body)[0], message.headers["eta"]) == ([late.id], None)
        await gate.maintain()
        assert await one.messages(0) == []  # it is not sent twice in its time
        assert await late.cancel()


async def test_what_a_dead_worker_had_is_sent_again_within_the_lease(one: Broker, unshared: str) -> None:
    """I20. Also where it was sent just before, and its message died with the worker."""
    clock = FakeClock()
    async with a_gate(one, clock=clock, store=unshared) as gate:
        job = await submit(gate, "look", {"n": 1}, queue="idle")
        assert len(await one.messages(1)) == 1
        now, options = clock.time(), gate.jobs.options
        assert await gate.store.jobs.take("dead", now, now + options.valid, id=job.id)
        clock.advance(options.valid + 0.01)
        await gate.maintain()
        assert await one.messages(0) == []
        clock.advance(LEASE - options.every - options.valid)  # there is a round between this and the end of the lease
        await gate.maintain()
        assert len(await one.messages(1)) == 1
        assert await gate.jobs.run_invocation(job.id) is JobState.DONE


async def test_a_record_that_is_rolled_back_is_not_sent(
    one: Broker, who: str, unshared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I20."""
    async with a_gate(one, store=unshared) as gate:
        before = await gate.store.jobs.list("acme")
        with pytest.raises(RegistrationError, match="no worker serves the queue"):
            await submit(gate, "look", {"n": 1}, queue="no-such", key=who)

        async def fails(*_: Any) -> None:
            raise StoreError("the commit failed")

        monkeypatch.setattr(gate.jobs.backend, "submit", fails)
        with pytest.raises(StoreError, match="the commit failed"):
            await submit(gate, "look", {"n": 1}, queue="idle", key=who)
        assert await one.messages(0) == []
        assert await gate.store.jobs.list("acme") == before


# ---------------------------------------------------------------------- what is refused


async def test_an_application_that_unpickles_is_refused(store: str) -> None:
    """B8: who can write to the broker runs nothing. As the gate opens, and where a worker registers it."""
    for setting in ("accept_content", "result_accept_content"):
        app = engine_app.celery_app("memory://", "x")
        app.conf[setting] = ["json", "pickle"]
        with pytest.raises(RegistrationError, match="accepts pickle"):
            await engine_app.gate(CeleryJobs(app), store=store).jobs.backend.open()
        with pytest.raises(RegistrationError, match="accepts pickle"):
            register(app, engine_app.gate(CeleryJobs(app), store=store))


async def test_what_could_not_work_is_refused(store: str) -> None:
    app = engine_app.celery_app("memory://", "x")
    with pytest.raises(RegistrationError, match="memory of this one"):
        engine_app.gate(CeleryJobs(app), store=None)
    jobs = CeleryJobs(app)
    gate = engine_app.gate(jobs, store=store)
    with pytest.raises(RegistrationError, match="another gate"):
        engine_app.gate(jobs, store=store)
    for other in (engine_app.celery_app("memory://", "y"), None):
        with pytest.raises(RegistrationError, match="Gate\\(jobs=CeleryJobs\\(app\\)\\)"):
            register(other, gate)
    wrongs: list[dict[str, Any]] = [{"queues": []}, {"queues": "default"}, {"resend": 0.0}]
    for wrong in wrongs:
        with pytest.raises(RegistrationError):
            CeleryJobs(app, **wrong)


async def test_callgate_worker_says_what_to_start_instead(store: str) -> None:
    """Celery forks its processes, and a gate that is open does not survive that."""
    gate = engine_app.gate(CeleryJobs("memory://", queues=["default", "urgent"]), store=store)
    with pytest.raises(RegistrationError, match=r"celery -A MODULE worker --queues callgate\.default,callgate\.urgent"):
        await gate.jobs.backend.work(3, (), asyncio.Event(), 1.0, Tally())


# ---------------------------------------------------------------------- namespaces

NAMES = {"": "x.default", "billing": "x.billing.default", "ledger": "x.ledger.default"}
"""The name of the queue ``default`` in the broker, by the namespace of the gate."""


@pytest.mark.parametrize("namespace", NAMES)
async def test_a_gate_in_a_namespace_has_queues_of_its_own(
    namespace: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 34: workers of another service took its messages, and its jobs ran when they were sent again."""
    sent = list[str]()

    async def send(_: object, *_args: object, queue: str, **_options: object) -> None:
        sent.append(queue)

    monkeypatch.setattr(SenderPool, "send", send)
    app, clock = engine_app.celery_app("memory://", "x"), FakeClock()
    jobs = CeleryJobs(app, queue_prefix="x.", resend=20.0)
    async with engine_app.gate(jobs, store=store, clock=clock, namespace=namespace) as gate:
        await gate._lifespan.background.stop()  # the test sweeps itself
        await submit(gate, "look", {"n": 7})
        clock.advance(21.0)
        await gate.jobs.recover()  # as for a message that a version before sent to another queue
        assert sent == [NAMES[namespace]] * 2
        assert {*app.amqp.queues} & {*NAMES.values()} == {NAMES[namespace]}, "a worker takes from its own alone"
        with pytest.raises(RegistrationError, match=f"--queues {NAMES[namespace]} "):
            await jobs.work(1, (), asyncio.Event(), 0.0, Tally())


@pytest.mark.parametrize("namespace", NAMES)
@pytest.mark.parametrize("named", [None, *NAMES.values()])
def test_a_worker_that_takes_from_no_queue_of_its_gate_says_so(namespace: str, named: str | None, store: str) -> None:
    app = engine_app.celery_app("memory://", "x")
    gate = engine_app.gate(CeleryJobs(app, queue_prefix="x."), store=store, namespace=namespace)
    backend = gate.jobs.backend
    assert isinstance(backend, CeleryJobs)
    backend.prepare()
    if named is not None:
        app.amqp.queues.select([named])  # --queues
    if named in {None, NAMES[namespace]}:
        check_queues(app, backend)
    else:
        with pytest.raises(RegistrationError, match=f"add {NAMES[namespace]} to --queues"):
            check_queues(app, backend)
