"""Calls of a gate as steps of DBOS workflows. DBOS replays a workflow, and the ledger answers a call that it repeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple, Unpack

from callgate.errors import GateClosed, NotPending, RegistrationError, StoreError
from callgate.providers.logs import LogEvent, emit
from callgate.providers.principal import User
from callgate.runtime.gate import Gate
from callgate.runtime.pipeline.options import CallOptions
from callgate.runtime.pipeline.result_json import result_as_json, result_from_json
from callgate.runtime.suspensions.resolution import CallState
from callgate.runtime.suspensions.suspensions import STORE_FAILED
from callgate.tools.calls import Outcome, ToolCall, ToolResult

RECHECK = 3_600.0
"""Seconds after which a workflow looks at its suspended call again, if no message arrived."""

MIN_POLL = 0.25
MAX_ATTEMPTS = 10
"""Attempts of a step whose store fails. With doubling pauses they take about eight minutes."""
IN_FLIGHT_PAUSE = 1.0
"""Seconds until a step asks again for a call that another process runs, or that a dead process left running."""

_OPEN = {CallState.WORKING, CallState.INPUT_REQUIRED}


class DurableStep(NamedTuple):
    """The outcome of one step of a call: its result, or the handle under which it is suspended."""

    result: ToolResult | None = None
    handle: str | None = None


async def call_as_step(
    gate: Gate, call: ToolCall, *, user: User, poll: float = 5.0, **options: Unpack[CallOptions]
) -> ToolResult:
    """Call a tool as a step of the DBOS workflow that runs, and return its result.

    The idempotency key is ``dbos:WORKFLOW:STEP``, with the id of the workflow and of the step. A recovered workflow
    repeats the step with the same key, and the effect takes place once. A suspended call waits for its decision, without
    a time limit but its own: any process with the store may decide, with ``gate.resume``.

    Each outcome of a call is a result, also a failure, and DBOS does not repeat it. DBOS repeats the step when the store
    failed before the tool ran. A cancelled workflow lets a running call end, and starts no further step. It withdraws a
    suspended call within ``poll`` seconds, while a process runs it.

    Args:
        gate: an open gate on a durable store. Call ``DBOS.launch()`` in its event loop.
        call: the call. Its arguments must be the same when DBOS replays the workflow.
        user: the user of the call.
        poll: maximum time, in seconds, until the workflow learns of a decision. Default: 5.
        options: as for ``gate.call``. ``idempotency_key`` replaces the key of the step.

    Raises:
        RegistrationError: the extra is not installed, no workflow runs, or ``poll`` is not above 0.
        DBOSMaxStepRetriesExceeded: the store failed in ten attempts.
    """
    if find_spec("dbos") is None:
        raise RegistrationError('call_as_step needs packages that are not installed: pip install "callgate[dbos]"')
    if not poll > 0:
        raise RegistrationError("call_as_step: poll is seconds, above 0")
    from dbos import DBOS

    workflow = DBOS.workflow_id
    if workflow is None or DBOS.step_id is not None:
        raise RegistrationError(
            "call_as_step: call it in an async function with @DBOS.workflow(), outside of its steps"
        )
    given = options.pop("idempotency_key", None)

    async def first() -> DurableStep:
        key = given or f"dbos:{workflow}:{DBOS.step_id}"
        return await first_step(gate, call, user, {**options, "idempotency_key": key})

    last = await _run(f"callgate.{call.name}", first)
    while last.handle is not None:
        await _message(gate, workflow, last.handle, user, poll)
        last = await _run("callgate.outcome", partial(next_step, gate, last.handle, user, options.get("deadline")))
    assert last.result is not None
    return last.result


async def _run(name: str, body: Callable[[], Coroutine[object, None, DurableStep]]) -> DurableStep:
    """Run a step. DBOS keeps it as a JSON object, so that any serializer can read it."""
    from dbos import DBOS

    async def step() -> dict[str, Any]:
        result, handle = await body()
        return {"handle": handle, "result": None if result is None else result_as_json(result)}

    kept = await DBOS.run_step_async(
        {
            "name": name,
            "retries_allowed": True,
            "max_attempts": MAX_ATTEMPTS,
            "interval_seconds": 1.0,
            "backoff_rate": 2.0,
            "should_retry": lambda error: isinstance(error, StoreError | GateClosed),  # closed: the process ends
        },
        step,
    )
    return DurableStep(None if kept["result"] is None else result_from_json(kept["result"]), kept["handle"])


async def _message(gate: Gate, workflow: str, handle: str, user: User, poll: float) -> None:
    """Wait for the message that a suspended call was decided; the process that waits sends it, by any decision."""
    from dbos import DBOS

    # asyncio: in the context of the workflow, which anyio copies, DBOS would record the message as a step
    watch = asyncio.create_task(_watch(gate, workflow, handle, user, poll), context=Context())
    try:
        await DBOS.recv_async(_topic(handle), timeout_seconds=RECHECK)
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)  # asyncio: its errors are logged already


async def _watch(gate: Gate, workflow: str, handle: str, user: User, poll: float) -> None:
    """Send the workflow one message when the suspended call has ended; the pauses double up to *poll* seconds."""
    from dbos import DBOS

    pause = min(MIN_POLL, poll)
    while True:
        try:
            status = await DBOS.get_workflow_status_async(workflow)
            if status is not None and status.status == "CANCELLED":
                with suppress(NotPending):  # it has ended
                    await gate.waits.withdraw(handle, user)
            if await is_decided(gate, handle, user):
                await DBOS.send_async(workflow, "decided", _topic(handle), idempotency_key=_topic(handle))
                return
        except Exception as error:  # noqa: BLE001  (the store or the database of DBOS comes back)
            emit(LogEvent.JOB_STORE_FAILED, error=error)
        await asyncio.sleep(pause)
        pause = min(pause * 2, poll)


def _topic(handle: str) -> str:
    return f"callgate:{handle}"


async def first_step(gate: Gate, call: ToolCall, user: User, options: CallOptions) -> DurableStep:
    """Run a call. If another process runs it already, wait for its end or for that of its lease.

    Raises:
        StoreError: a store failed before the tool ran; the engine repeats the step.
        GateClosed: the gate is not open in this event loop.
    """
    while True:
        result = await gate.call(call, user=user, **options)
        if result.outcome is not Outcome.IN_FLIGHT:
            return _ended(result)
        await asyncio.sleep(IN_FLIGHT_PAUSE)


async def next_step(gate: Gate, handle: str, user: User, deadline: float | None) -> DurableStep:
    """Return how a suspended call goes on. A call that ``resume(here=False)`` decided runs here.

    Raises:
        StoreError: a store failed; the engine repeats the step.
        NotPending: no call of this user has the handle.
    """
    found = await gate.outcome(handle, user=user)
    if found.pending is not None and found.pending.decided:
        result = await gate.proceed(handle, user=user, deadline=deadline)
        return DurableStep(handle=handle) if result.outcome is Outcome.IN_FLIGHT else _ended(result)
    if found.state in _OPEN:
        return DurableStep(handle=handle if found.pending is None else found.pending.handle)
    if found.result is None:
        return _ended(await gate.repeat_read(handle, user, deadline=deadline))
    return _ended(found.result)


async def is_decided(gate: Gate, handle: str, user: User) -> bool:
    """Return whether a suspended call has ended, or waits for another decision."""
    found = await gate.outcome(handle, user=user)
    pending = found.pending
    return found.state not in _OPEN or (pending is not None and (pending.decided or pending.handle != handle))


def _ended(result: ToolResult) -> DurableStep:
    if result.outcome is Outcome.SUSPENDED:
        return DurableStep(handle=result.pending.handle)
    if result.error is not None and result.error.code in STORE_FAILED:
        raise StoreError(f"{result.tool}: {result.error.code}; the tool did not run")
    return DurableStep(result)
