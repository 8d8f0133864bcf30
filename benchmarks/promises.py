"""What each promise costs: a call that needs it, over the same call without it, as a share of floor2s."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Unpack

from benchmarks.floors import ARGS_JSON, IN_SCHEMA, OUT_SCHEMA, add, floor2s
from benchmarks.timing import Call, Effort, interleave
from benchmarks.twelve import USER, call_of, make_tool
from callgate import Effects, Gate, Hook, InvokeContext, User, tool
from callgate.runtime.pipeline.options import CallOptions


class Pass(Hook):
    """Decide nothing: what any hook costs, with the context variables that are restored after the call."""

    def will_authorize(self, ctx: InvokeContext) -> None:
        pass


class Timed(Pass):
    timeout = 10.0


class Filtered(Pass):
    def filter(self, ctx: InvokeContext) -> bool:
        return True


class Shadow(Pass):
    mode = "shadow"


class ReadInput(Hook):
    def will_authorize_input(self, ctx: InvokeContext) -> None:
        _ = ctx.input


class SetInput(Hook):
    def will_normalize_input(self, ctx: InvokeContext) -> None:
        ctx.input = {**ctx.input, "note": None}


class ReadOutput(Hook):
    def will_redact_output(self, ctx: InvokeContext) -> None:
        _ = ctx.output


class SetOutput(Hook):
    def will_redact_output(self, ctx: InvokeContext) -> None:
        ctx.output = {"sum": 3}


class Lease(Hook):
    def will_acquire_quota(self, ctx: InvokeContext) -> None:
        pass

    def did_release_quota(self, ctx: InvokeContext) -> None:
        pass


class AsyncLease(Hook):
    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        pass

    async def did_release_quota(self, ctx: InvokeContext) -> None:
        pass


class Record(Hook):
    def on_metrics(self, ctx: InvokeContext) -> None:
        pass


class AsyncRecord(Hook):
    async def will_audit(self, ctx: InvokeContext) -> None:
        pass


HOOKS: Mapping[str, Hook] = {
    "hook": Pass(),
    "input_view": ReadInput(),
    "input_set": SetInput(),
    "output_view": ReadOutput(),
    "output_set": SetOutput(),
    "lease": Lease(),
    "async_lease": AsyncLease(),
    "record": Record(),
    "async_record": AsyncRecord(),
    "timeout": Timed(),
    "filter": Filtered(),
    "shadow": Shadow(),
}
WHAT = {
    "hook": "context variables are as before the call: the first hook",
    "input_view": "hooks cannot change the arguments in place",
    "input_set": "arguments that a hook sets are copied, dated, validated again",
    "output_view": "hooks cannot change the output in place",
    "output_set": "an output that a hook sets is copied and dated",
    "lease": "capacity is given back once, on every path",
    "async_lease": "the same, by coroutines under a shield",
    "record": "a record is made on every path",
    "async_record": "the same, by a coroutine under a shield",
    "timeout": "a hook ends within its timeout",
    "filter": "a hook runs only where its filter says",
    "shadow": "a hook in shadow mode changes nothing",
    "objects": "arguments as an object are copied and checked",
    "deadline": "the call ends at its deadline",
    "idle": "the call ends where it makes no progress",
    "token": "the user's token is in no log and no output",
    "effect": "an effect takes place once (ledger in memory)",
}
"""What each case promises, by the name of its row."""


def _with_options(gate: Gate, arguments: object = ARGS_JSON, user: User = USER, **options: Unpack[CallOptions]) -> Call:
    invoke = gate.invoke
    return lambda: invoke("add", arguments, user=user, **options)


async def measure(effort: Effort) -> dict[str, float]:
    """Time each case beside the call without it."""
    effect = tool(name="add", parameters=IN_SCHEMA, output_schema=OUT_SCHEMA, effect="irreversible")(add)
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(Gate([make_tool()]))
        cases = {"none": call_of(plain)}
        for name, hook in HOOKS.items():
            cases[name] = call_of(await stack.enter_async_context(Gate([make_tool()], [hook])))
        cases["objects"] = _with_options(plain, {"a": 1, "b": 2, "note": "x"})
        cases["deadline"] = _with_options(plain, deadline=10.0)
        cases["idle"] = _with_options(plain, idle=10.0)
        cases["token"] = _with_options(plain, user=replace(USER, token="secret-of-the-user"))
        ledger = Gate([effect], allow_unguarded=True, effects=Effects(durable=False))
        cases["effect"] = call_of(await stack.enter_async_context(ledger))
        found = await interleave(cases, {"floor2s": floor2s()}, effort)
    return {f"promise_{name}_x_floor2s": found[name].minus(found["none"], "floor2s") for name in WHAT}
