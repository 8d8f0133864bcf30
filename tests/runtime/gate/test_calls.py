"""Calls, one and many: always one result each, in order; outputs within bounds; nobody sees what is another's."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate import (
    Hook,
    InvokeContext,
    Limits,
    Outcome,
    RetryLater,
    ToolCall,
    ToolError,
    ToolResult,
    User,
    tool,
)
from tests.runtime.gate.making import ANYTHING, NUMBER, USER, Seeing, call, double, gate_of, made

# ---------------------------------------------------------------------- one result, whatever is called


async def echo(**arguments: Any) -> Any:
    return arguments


async def raising(**arguments: Any) -> Any:
    raise LookupError(f"SECRET {arguments}")


@tool(effect="read", parameters=ANYTHING)
class Choosy:
    """Raises in its constructor when told to."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        if arguments:
            raise LookupError("SECRET")

    async def run(self) -> None: ...


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.just("n"), inner, max_size=3)
        | st.dictionaries(st.integers(), inner, max_size=2)
        | st.sets(st.integers(), max_size=2)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(["work", "echo", "raising", "Choosy", "nope", "", "W" * 200, "\ud800\n"])
CALLS = st.builds(
    ToolCall,
    id=st.text(max_size=5),
    name=NAMES,
    arguments=JSON | st.sampled_from(['{"n": 1}', "{'n': 1}", "{", "null", "[]", '{"n": NaN}', '"{}"']),
    truncated=st.booleans(),
    synthetic_id=st.booleans(),
)


def zoo() -> list[Any]:
    return [
        made(double),
        made(echo, "echo", parameters=ANYTHING),
        made(raising, "raising", parameters=ANYTHING),
        Choosy,
    ]


@settings(max_examples=150, deadline=None)
@given(st.lists(CALLS, max_size=6), st.booleans(), st.booleans())
def test_every_call_has_one_result_whatever_is_in_it(calls: list[ToolCall], many: bool, hydrated: bool) -> None:
    """Contract 36, 74, C12, I2."""

    async def go() -> list[ToolResult]:
        async with gate_of(zoo()) as gate:
            given: list[Any] = [gate.hydrate(one) for one in calls] if hydrated else list(calls)
            if many:
                return await gate.call_many(given, user=USER)
            return [await gate.call(one, user=USER) for one in given]

    results = asyncio.run(go())
    assert [(result.call_id, result.tool) for result in results] == [(one.id, one.name) for one in calls]
    for one, result in zip(calls, results, strict=True):
        assert result.ok is (result.error is None)
        assert one.truncated <= (not result.ok)
        assert "SECRET" not in repr(result.error)


@pytest.mark.parametrize("name", [None, 7, ["work"], {"work": 1}, double], ids=range(5))
async def test_a_tool_name_that_is_no_text_is_an_unknown_tool(name: Any) -> None:
    """Contract 36, C10a, C12."""
    async with gate_of(zoo()) as gate:
        result = await gate.call(ToolCall(id="c", name=name), user=USER)
        assert result.error is not None
        assert result.error.code == "unknown_tool"
        assert len(await gate.call_many([ToolCall(id="c", name=name)] * 2, user=USER)) == 2


# ---------------------------------------------------------------------- many calls


async def test_results_come_in_the_order_of_the_calls_and_not_of_their_ends() -> None:
    """Contract 74."""
    ended: list[int] = []
    turns = [asyncio.Event() for _ in range(9)]
    turns[8].set()

    async def work(n: int) -> int:
        await turns[n].wait()
        ended.append(n)
        if n:
            turns[n - 1].set()
        return n

    async with gate_of([made(work)]) as gate:
        results = await gate.call_many([call({"n": i}, id=str(i)) for i in range(9)], user=USER)
    assert ended == list(range(9))[::-1]
    assert [result.output for result in results] == list(range(9))


async def test_a_failure_among_many_is_its_own_result_and_stops_nobody() -> None:
    """Contract 74, 77."""
    async with gate_of(zoo()) as gate:
        results = await gate.call_many([call(), call(name="raising"), call(name="nope"), call({}), call()], user=USER)
    ends = [result.outcome.value for result in results]
    assert ends == ["success", "error", "invalid", "invalid", "success"]


async def test_many_calls_can_be_traced_like_one() -> None:
    """Contract 74, 83."""
    calls = [call(), call({}), call(name="nope")]
    async with gate_of([made(double)]) as gate:
        plain = await gate.call_many(calls, user=USER)
        traced = await gate.call_many(calls, user=USER, trace=True)
        alone = await gate.call(calls[0], user=USER, trace=True)
    assert [result.trace for result in plain] == [None] * 3
    steps = [[row[:3] for row in result.trace] if result.trace else None for result in (*traced, alone)]
    assert steps[0]
    assert steps[0] == steps[3]
    assert steps[1]
    assert steps[2] is None  # an unknown tool has no plan
    assert [result.outcome for result in traced] == [result.outcome for result in plain]


async def test_no_more_run_at_once_than_allowed() -> None:
    """Contract 74, I11."""
    running = peak = 0

    async def work(n: int) -> int:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        for _ in range(3):
            await asyncio.sleep(0)
        running -= 1
        return n

    async with gate_of([made(work)]) as gate:
        for most in (1, 3, 100):
            peak = 0
            results = await gate.call_many([call({"n": i}) for i in range(12)], user=USER, at_once=most)
            assert peak == min(most, 12)
            assert [result.output for result in results] == list(range(12))
        with pytest.raises(ValueError, match="at_once"):
            await gate.call_many([call()], at_once=0)
        assert await gate.call_many([], user=USER) == []


async def test_a_tool_that_may_not_run_in_parallel_is_a_barrier() -> None:
    """Contract 74."""
    log: list[str] = []
    both = asyncio.Event()

    async def beside(n: int) -> int:
        log.append(f"in {n}")
        if sum(line.startswith("in") for line in log) in {2, 4}:
            both.set()
        await both.wait()
        log.append(f"out {n}")
        return n

    async def alone(n: int) -> int:
        log.append(f"alone {n}")
        both.clear()
        await asyncio.sleep(0)
        log.append(f"end {n}")
        return n

    async with gate_of([made(beside, "beside"), made(alone, "alone", parallel=False)]) as gate:
        calls = [call({"n": i}, "alone" if i in {2, 3} else "beside", id=str(i)) for i in range(6)]
        results = await gate.call_many([*calls[:4], gate.hydrate(calls[4]), calls[5]], user=USER)
    assert [result.output for result in results] == list(range(6))
    middle = ["alone 2", "end 2", "alone 3", "end 3"]
    assert log[:2] == ["in 0", "in 1"]
    assert log[4:8] == middle
    assert log[8:10] == ["in 4", "in 5"]


async def test_cancelling_many_cancels_and_awaits_each() -> None:
    """Contract 74, C1d, I1."""
    started, ended = asyncio.Event(), list[int]()
    count = 0

    async def work(n: int) -> int:
        nonlocal count
        count += 1
        if count == 5:
            started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(n)
        return n

    seeing = Seeing()
    async with gate_of([made(work)], seeing) as gate:
        running = asyncio.ensure_future(gate.call_many([call({"n": i}) for i in range(5)], user=USER))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert sorted(ended) == list(range(5))
    assert [outcome for outcome, _ in seeing.audited] == ["cancelled"] * 5


async def test_a_tool_that_cancels_its_own_task_still_has_a_result_among_many() -> None:
    """Contract 74, I13."""

    async def work(n: int) -> int:
        if n == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        return n

    async with gate_of([made(work)]) as gate:
        results = await gate.call_many([call({"n": i}, id=str(i)) for i in range(3)], user=USER)
    assert [(result.call_id, result.outcome.value) for result in results] == [
        ("0", "success"),
        ("1", "cancelled"),
        ("2", "success"),
    ]


# ---------------------------------------------------------------------- ten thousand


class Quota(Hook):
    """A counter that is up while calls run, and a lease of each."""

    def __init__(self) -> None:
        self.held = self.peak = 0
        self.leases: Counter[str] = Counter()

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0)
        self.held += 1
        self.peak = max(self.peak, self.held)
        self.leases["taken"] += 1

    async def did_release_quota(self, ctx: InvokeContext) -> None:
        self.held -= 1
        self.leases["given back"] += 1


async def test_ten_thousand_calls_at_once_all_come_right_and_nothing_is_left_over() -> None:
    """Contract 23, 74, C1, I1, I11."""

    async def work(n: int) -> int:
        await asyncio.sleep(0)
        if n % 10 == 3:
            raise ToolError("three")
        return 2 * n

    quota, amount = Quota(), 10_000
    async with gate_of([made(work)], quota) as gate:
        calls = [call({"n": i if i % 10 != 7 else "x"}, id=str(i)) for i in range(amount)]
        results = await gate.call_many(calls, user=USER, at_once=amount)
    for i, result in enumerate(results):
        assert result.call_id == str(i)
        if i % 10 == 7:
            assert result.outcome is Outcome.INVALID
        elif i % 10 == 3:
            assert result.outcome is Outcome.ERROR
        else:
            assert result.output == 2 * i
    assert quota.held == 0
    assert quota.leases == {"taken": amount, "given back": amount}
    assert quota.peak > amount // 2


# ---------------------------------------------------------------------- where bodies run


async def test_a_plain_function_runs_in_a_thread_and_an_inline_one_in_the_loop() -> None:
    """Contract 77."""

    @tool(effect="read")
    def plain() -> str:
        return threading.current_thread().name

    @tool(effect="read", inline=True)
    def inline() -> str:
        return threading.current_thread().name

    @tool(effect="read", parameters={"type": "object"})
    class Classy:
        def run(self) -> str:
            return threading.current_thread().name

    async with gate_of([plain, inline, Classy]) as gate:
        assert await gate.invoke("plain") == "callgate-plain_0"
        assert await gate.invoke("inline") == threading.main_thread().name
        assert "callgate-Classy" in await gate.invoke("Classy")


async def test_a_loop_goes_on_while_plain_functions_wait_for_a_thread() -> None:
    """Contract 77, I11, I12."""
    go = threading.Event()
    here = asyncio.get_running_loop()
    inside = asyncio.Event()

    @tool(effect="read", max_threads=1)
    def slow() -> str:
        here.call_soon_threadsafe(inside.set)
        assert go.wait(30)
        return "done"

    async with gate_of([slow]) as gate:
        first = asyncio.ensure_future(gate.call(ToolCall(id="1", name="slow")))
        await inside.wait()
        second = asyncio.ensure_future(gate.call(ToolCall(id="2", name="slow")))
        await asyncio.sleep(0)
        assert not second.done()
        go.set()
        assert [(await first).output, (await second).output] == ["done", "done"]


async def test_each_tool_has_its_own_limits_on_what_comes_in_and_goes_out() -> None:
    """Contract 47, 80."""
    small = made(echo, "small", parameters=ANYTHING, limits=Limits(max_bytes=30, max_output_bytes=12))
    async with gate_of([small, made(echo, "large", parameters=ANYTHING)]) as gate:
        assert (await gate.call(call({"a": 1}, "small"))).ok
        for arguments in ('{"text": "' + "x" * 30 + '"}', {"text": "x" * 40}):
            assert (await gate.call(call(arguments, "small"))).outcome is Outcome.INVALID
            assert (await gate.call(call(arguments, "large"))).ok
        too_much = await gate.call(call({"a": "0123456"}, "small"))
        assert too_much.outcome is Outcome.ERROR
        assert too_much.error is not None
        assert too_much.error.code == "output_too_large"


# ---------------------------------------------------------------------- outputs


class Opaque:
    def __repr__(self) -> str:
        return "SECRET at 0x7f"


def deep(levels: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
BAD: dict[str, Any] = {
    "no JSON": Opaque(),
    "a set": {"SECRET", Opaque()},
    "bytes": b"SECRET\xff",
    "two keys that are one text": {1: "SECRET", "1": 3},
    "not finite": {"SECRET": [1.0, float("nan")]},
    "infinite": float("inf"),
    "half a surrogate": "SECRET \ud800",
    "too large": "SECRET" * 200_000,
    "too deep": deep(3000),
    "cyclic": CYCLE,
    "buried": {"a": [{"b": Opaque()}]},
}


@pytest.mark.parametrize("bad", BAD)
async def test_an_output_that_is_no_finite_json_of_bearable_size_is_an_error_without_internals(bad: str) -> None:
    """Contract 78, C12, I9, I15."""

    async def work(n: int) -> Any:
        return BAD[bad]

    async with gate_of([made(work)]) as gate:
        result = await gate.call(call(), user=USER)
    assert result.outcome is Outcome.ERROR, result.output
    assert result.output is None
    assert result.error is not None
    said = f"{result.error} {result.to_status()} {result.to_success()}"
    for internal in ("SECRET", "Opaque", "0x7f", "nan", "Traceback"):
        assert internal not in said
    assert not result.error.issues


@pytest.mark.parametrize("output", [{"total": "SECRET"}, {}, "SECRET", None, {"total": 1, "SECRET": 2}])
async def test_an_output_that_breaks_its_schema_is_an_error_without_internals(output: Any) -> None:
    """Contract 71, C17, I9, I15."""
    schema = {
        "type": "object",
        "properties": {"total": {"type": "number"}},
        "required": ["total"],
        "additionalProperties": False,
    }

    async def work(n: int) -> Any:
        return output

    async with gate_of([made(work, output=schema)]) as gate:
        result = await gate.call(call(), user=USER)
    assert result.outcome is Outcome.ERROR
    assert result.error is not None
    assert result.error.code == "invalid_output"
    assert "SECRET" not in f"{result.error} {result.to_status()}"


async def test_a_transforming_hook_is_held_to_the_same_bounds() -> None:
    """Contract 97, I15."""

    class Spoiling(Hook):
        def will_transform_output(self, ctx: InvokeContext) -> None:
            ctx.output = {"value": float("nan")}

    async with gate_of([made(double)], Spoiling()) as gate:
        assert (await gate.call(call())).outcome is Outcome.ERROR


# ---------------------------------------------------------------------- nobody else's


async def test_nothing_of_one_user_is_in_a_result_or_error_of_another() -> None:
    """Contract 84, C26, I8, I9."""
    users = [User(f"user{i}", tenant=f"tenant{i % 7}") for i in range(200)]

    class Kept(Hook):
        """Keeps a secret in every place that an invocation has."""

        def will_bind_providers(self, ctx: InvokeContext) -> None:
            canary = f"CANARY-{ctx.user.id}-"
            for scope in ("request", "session"):
                assert ctx.try_get(f"{scope} secret") in {None, canary}
            ctx.bind_provider("request secret", canary)
            ctx.bind_provider("session secret", canary, "session")
            ctx.data["secret"] = canary

        def will_redact_input(self, ctx: InvokeContext) -> None:
            ctx.masked_input = {"n": 0}

        def on_metrics(self, ctx: InvokeContext) -> None:
            seen.append(ctx.data["secret"] == f"CANARY-{ctx.user.id}-")

    seen: list[bool] = []

    async def work(n: int, text: str, ctx: Any) -> Any:
        await asyncio.sleep(0)
        mine = {ctx.get("request secret"), ctx.get("session secret"), text}
        if n % 4 == 1:
            raise LookupError(mine)
        if n % 4 == 2:
            raise RetryLater(5, f"{mine}")
        if n % 4 == 3:
            return {"bad": mine}
        return sorted(mine)

    schema = {**NUMBER, "properties": {**NUMBER["properties"], "text": {"type": "string"}}}
    async with gate_of([made(work, parameters=schema, context_parameter="ctx")], Kept()) as gate:

        async def one(i: int, user: User) -> tuple[User, ToolResult]:
            session = f"session of {user.id}" if i % 2 else None
            arguments: dict[str, Any] = {"n": i, "text": f"CANARY-{user.id}-"}
            if i == 7:
                arguments["n"] = arguments["text"]
            return user, await gate.call(call(arguments), user=user, session_id=session)

        ended = await asyncio.gather(*(one(i, user) for i in range(8) for user in users))
    assert seen == [True] * len(ended)
    outcomes: Counter[str] = Counter()
    for user, result in ended:
        outcomes[result.outcome.value] += 1
        said = f"{result.output} {result.error} {result.to_status()} {result.to_success()}"
        assert said.replace(f"CANARY-{user.id}-", "").count("CANARY") == 0
        if not result.ok:
            assert "CANARY" not in said
    assert len(ended) == 1600
    assert set(outcomes) == {"success", "error", "retry_later", "invalid"}


async def test_a_call_of_a_tool_that_does_not_exist_passes_the_hooks_of_errors_and_records() -> None:
    """Contract 104, C10a: nothing else runs, and a hook that is for other tools stays out."""
    seen: list[Any] = []

    class Records(Hook):
        def will_authorize(self, ctx: InvokeContext) -> None:
            seen.append("authorised")

        def on_error(self, ctx: InvokeContext) -> None:
            seen.append(("error", type(ctx.error).__name__))

        async def will_audit(self, ctx: InvokeContext) -> None:
            seen.append((ctx.tool_call.name, ctx.outcome))

    class ForPayments(Hook):
        tags = frozenset({"payments"})

        def will_audit(self, ctx: InvokeContext) -> None:
            seen.append("payments")

    async with gate_of([made(double)], Records(), ForPayments()) as gate:
        result = await gate.call(
            ToolCall(id="c", name="no such tool", arguments="not even json"), user=USER, deadline=1e-9, trace=True
        )
    assert seen == [("error", "UnknownTool"), ("no such tool", "invalid")]
    assert (result.tool, result.outcome, result.error and result.error.code) == (
        "no such tool",
        "invalid",
        "unknown_tool",
    )
