"""Celery workers: the task that runs a job, and the gate in each worker process."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

from callgate.errors import RegistrationError
from callgate.providers.concurrency import refuse_green_threads
from callgate.providers.logs import LogEvent, emit
from callgate.providers.stores.jobs import JobState
from callgate.runtime.gate import Gate
from callgate.runtime.gate.sync import SyncGate
from callgate.runtime.hosts.celery.backend import SLACK, TASK, CeleryJobs
from callgate.runtime.hosts.celery.reconnect import reconnect_on_lost_ack

MAX_RETRIES = 3
"""Maximum number of retries of a message after a failure of the store."""

DAY = 86_400.0
"""Celery's time limit of a job, in seconds; the deadline of the call ends it earlier, and cleanly."""


def register(app: Any, gate: Gate) -> None:
    """Let the workers of a Celery application run the jobs of a gate. Call it in the module that ``celery -A`` names.

    Each worker process opens the gate after the fork, and closes it at its end. A message is acknowledged when its job
    has ended: if a process dies, its messages are delivered again, and their jobs run when the lease expires. Time limits
    of the application or its worker do not end calls; deadlines do. A worker that loses its broker while all its slots
    are busy reconnects.

    Raises:
        RegistrationError: the gate was not made with ``jobs=CeleryJobs(app)``, the application accepts more than JSON, or
            gevent or eventlet has replaced the threads (``celery --pool gevent``): then the worker does not start.
    """
    refuse_green_threads()  # here, because Celery only logs the errors of its signals, and no job would run
    from celery.signals import celeryd_after_setup, worker_process_init, worker_process_shutdown

    backend = gate.jobs.backend
    if not isinstance(backend, CeleryJobs) or backend.app is not app:
        raise RegistrationError("register: make the gate for this application, with Gate(jobs=CeleryJobs(app))")
    backend.prepare()
    reconnect_on_lost_ack(app)
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
    celeryd_after_setup.connect(lambda instance, **_: check_queues(instance.app, backend), weak=False)
    celeryd_after_setup.connect(lambda instance, **_: _extend_limits(instance, task), weak=False)
    worker_process_init.connect(lambda **_: Thread(target=_open, args=(tools,), daemon=True).start(), weak=False)
    worker_process_shutdown.connect(lambda **_: tools.close(), weak=False)


def check_queues(app: Any, backend: CeleryJobs) -> None:
    """Check that a worker has queues of the gate. Celery logs the error; the worker may have tasks of the application.

    Raises:
        RegistrationError: it has none, so it runs no job.
    """
    names = backend.names(backend.queues)
    if not app.amqp.queues.consume_from.keys() & names:
        raise RegistrationError(
            f"this worker runs no jobs of Callgate, because it takes from none of their queues: add {','.join(names)} "
            "to --queues; a gate in a namespace has queues of its own"
        )


def _extend_limits(worker: Any, task: Any) -> None:
    """Extend time limits to a day: a call that Celery stops has an unknown outcome. Without limits nothing changes."""
    limits = (worker.time_limit, worker.soft_time_limit, task.time_limit, task.soft_time_limit)
    if any(limits):
        task.time_limit = task.soft_time_limit = DAY


def _open(tools: SyncGate) -> None:
    """Open the gate before the first job: an open gate also finds lost jobs.

    This runs in a thread, because Celery kills a process that is not ready after four seconds. A job waits until the
    gate is open.
    """
    try:
        tools.open()
    except Exception as error:  # noqa: BLE001  (each job opens the gate, too)
        emit(LogEvent.JOB_STORE_FAILED, error=error)


def _task(gate: Gate, backend: CeleryJobs) -> Callable[[object, object], None]:
    """Return the task that runs a job by its id."""

    def run_invocation(self: Any, id: object) -> None:
        if not backend.is_job(id):
            return
        state: JobState | None = None
        failed = False
        try:
            state = gate.sync().open().run_job(id)
        except Exception as error:  # noqa: BLE001  (of the store, or of a gate that closes)
            emit(LogEvent.JOB_STORE_FAILED, error=error)
            failed = True
        # A redelivered job of a dead worker keeps its lease for a while: retry the message after that.
        early = state is None and (self.request.delivery_info or {}).get("redelivered", False)
        later = backend.jobs.options.valid + SLACK
        if (failed or early) and self.request.retries < MAX_RETRIES and later <= backend.resend:
            raise self.retry(countdown=later)  # otherwise the sweep sends it again

    return run_invocation
