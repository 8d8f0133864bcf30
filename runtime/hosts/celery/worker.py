"""The side of Celery's workers: the one task, and the gate in each of their processes."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

from callgate.errors import GateClosed, RegistrationError, StoreError
from callgate.providers.logs import Event, emit
from callgate.providers.stores.jobs import JobState
from callgate.runtime.gate import Gate
from callgate.runtime.hosts.celery.backend import SLACK, TASK, CeleryJobs
from callgate.runtime.hosts.celery.reconnect import outlast_outages
from callgate.runtime.portal import SyncGate

TRIES = 3
"""How often a message is put off because the store failed."""

DAY = 86_400.0
"""Seconds that a job has where Celery's time limits are on: a call ends by its own deadline, and not in the middle."""


def register(app: Any, gate: Gate) -> None:
    """Have the workers of a Celery application run the jobs of a gate. Call it in the module that ``celery -A`` names.

    Each process of a worker opens the gate after it was forked, and closes it as it ends. A message is acknowledged when
    its job has ended: what was under way in a process that died is delivered again, and taken when its lease is over.
    Time limits of the application or its worker do not end calls; their deadlines do. A worker that loses its broker
    while all its places are taken connects again; see ``outages``.

    Raises:
        RegistrationError: the gate was not made with ``jobs=CeleryJobs(app)``, or the application accepts more than JSON.
    """
    from celery.signals import celeryd_after_setup, worker_process_init, worker_process_shutdown

    backend = gate.jobs.backend
    if not isinstance(backend, CeleryJobs) or backend.app is not app:
        raise RegistrationError("register: the gate is made for the application, Gate(jobs=CeleryJobs(app))")
    backend.prepare()
    outlast_outages(app)
    tools = gate.sync()
    task = app.task(
        name=TASK,
        bind=True,
        acks_late=True,
        reject_on_worker_lost=True,
        ignore_result=True,
        max_retries=None,
        serializer="json",
    )(_task(gate, backend))
    celeryd_after_setup.connect(lambda instance, **_: _lift_limits(instance, task), weak=False)
    worker_process_init.connect(lambda **_: Thread(target=_open, args=(tools,), daemon=True).start(), weak=False)
    worker_process_shutdown.connect(lambda **_: tools.close(), weak=False)


def _lift_limits(worker: Any, task: Any) -> None:
    """What Celery stops in the middle nobody knows the end of. Only where there are limits: each has a timer, to its end."""
    limits = (worker.time_limit, worker.soft_time_limit, task.time_limit, task.soft_time_limit)
    if any(limits):
        task.time_limit = task.soft_time_limit = DAY


def _open(tools: SyncGate) -> None:
    """Begin before the first job comes: an open gate also finds what was lost.

    In a thread, because Celery kills a process that is not ready after four seconds. Who has a job waits for it.
    """
    try:
        tools.open()
    except Exception as error:  # noqa: BLE001  (each job opens it, too)
        emit(Event.JOB_STORE_FAILED, error=error)


def _task(gate: Gate, backend: CeleryJobs) -> Callable[[Any, str], None]:
    """What a process of a worker does with an id."""

    def run_invocation(self: Any, id: str) -> None:
        state: JobState | None = None
        failed = False
        try:
            state = gate.sync().open()._run(lambda: gate.jobs.run_invocation(id))
        except (StoreError, GateClosed) as error:
            emit(Event.JOB_STORE_FAILED, error=error)
            failed = True
        # What came once more because its worker died is not to be taken before its lease is over: it comes again then.
        early = state is None and (self.request.delivery_info or {}).get("redelivered", False)
        later = backend.jobs.options.valid + SLACK
        if (failed or early) and self.request.retries < TRIES and later <= backend.resend:
            raise self.retry(countdown=later)  # else it is sent again, as what is lost is

    return run_invocation
