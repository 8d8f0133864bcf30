"""Twelve hooks that each do a small real thing: together floor2's work, and more. Four would talk to a store (async)."""

from __future__ import annotations

import itertools
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import fastjsonschema

from benchmarks.floors import ARGS_JSON, IN_SCHEMA, OUT_SCHEMA, Body, add
from benchmarks.timing import Call
from callgate import Gate, Hook, User, tool

USER = User("u1", scopes={"math", "read"})


def make_tool(fn: Body = add, *, output: bool = True) -> Any:
    """The tool ``add``; without an output schema where a hook validates the output."""
    schema: Any = OUT_SCHEMA if output else False
    return tool(name="add", parameters=IN_SCHEMA, output_schema=schema, effect="read", tags={"math"})(fn)


def call_of(gate: Gate) -> Call:
    """The call that is measured."""
    invoke = gate.invoke
    return lambda: invoke("add", ARGS_JSON, user=USER)


@dataclass
class Ledger:
    """What the hooks leave behind, to see that they ran."""

    audit: deque[Any] = field(default_factory=lambda: deque(maxlen=4096))
    counters: dict[str, int] = field(default_factory=lambda: {"calls": 0, "errors": 0})
    used: list[int] = field(default_factory=lambda: [0])

    def verify(self) -> None:
        """Stop unless the hooks did their work at every call, and no call failed."""
        calls, errors, used = self.counters["calls"], self.counters["errors"], self.used[0]
        written, last = len(self.audit), self.audit[-1] if self.audit else None
        if not calls or errors or used or not last or (last[0] + 1, last[3]) != (calls, "ok"):
            raise SystemExit(
                f"the benchmark is broken: {calls} calls, {errors} errors, quota {used}, audit {written}, {last}"
            )


def twelve(quota: int = 1000) -> tuple[list[Hook], Ledger]:
    """The hooks, and their ledger."""
    ledger = Ledger()
    audit_log, counters, used = ledger.audit, ledger.counters, ledger.used
    cache: dict[Any, Any] = {}
    bucket = [1e9]
    check_out = fastjsonschema.compile(OUT_SCHEMA)
    clock = time.perf_counter_ns
    ids = itertools.count()
    needs = frozenset({"math"})

    class Timing(Hook):
        def will_create_invoke_context(self, ctx):
            ctx.data["started"] = clock()

    class Size(Hook):
        def will_create_invoke_context(self, ctx):
            if len(ctx.raw_input) > 100_000:
                ctx.abort("too large")

    class Normalise(Hook):
        def will_validate_input(self, ctx):
            if "note" not in ctx.input:
                ctx.input = {**ctx.input, "note": None}

    class Authorize(Hook):
        async def will_authorize_input(self, ctx):
            if not needs <= ctx.user.scopes:
                ctx.abort("missing scope")

    class RateLimit(Hook):
        def will_authorize_input(self, ctx):
            if bucket[0] < 1:
                ctx.retry_after(1000)
            bucket[0] -= 1

    class Quota(Hook):
        async def will_acquire_quota(self, ctx):
            if used[0] > quota:
                ctx.abort("no quota left")
            used[0] += 1

        async def did_release_quota(self, ctx):
            used[0] -= 1

    class Cache(Hook):
        async def will_read_cache(self, ctx):
            hit = cache.get((ctx.tool_id, ctx.user.id, ctx.raw_input))
            if hit is not None:
                ctx.respond(hit)

    class Metrics(Hook):
        def will_execute(self, ctx):
            counters["calls"] += 1

        def on_metrics(self, ctx):
            if ctx.error is not None:
                counters["errors"] += 1

    class OutValidate(Hook):
        def will_validate_output(self, ctx):
            check_out(ctx.output)

    class Redact(Hook):
        def will_redact_output(self, ctx):
            if "secret" in ctx.output:
                ctx.output = {**ctx.output, "secret": "*"}

    class Budget(Hook):
        def will_transform_output(self, ctx):
            ctx.data["size"] = len(ctx.raw_input)

    class Audit(Hook):
        async def will_audit(self, ctx):
            outcome = "ok" if ctx.error is None else type(ctx.error).__name__
            audit_log.append((next(ids), ctx.tool_id, ctx.user.id, outcome, clock() - ctx.data["started"]))

    kinds = (
        *(Timing, Size, Normalise, Authorize, RateLimit, Quota),
        *(Cache, Metrics, OutValidate, Redact, Budget, Audit),
    )
    return [kind() for kind in kinds], ledger


def twelve_gate(fn: Body = add, quota: int = 1000) -> tuple[Gate, Ledger]:
    """A gate with the twelve hooks about the tool."""
    hooks, ledger = twelve(quota)
    return Gate([make_tool(fn, output=False)], hooks), ledger
