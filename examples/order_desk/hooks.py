"""The desk's policies: who may, how many at once, what is remembered, what is written down."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping

from callgate import Hook, InvokeContext, Outcome, Stage, on
from examples.order_desk.desk import AppContainer

REFUND_LIMIT = 50_000
"""Cents that a model may give back in one call, whoever it works for."""


class Authorize(Hook):
    """Lets a user's roles decide by the tags of a tool: every tag must be granted."""

    priority = 100

    def __init__(self, grants: Mapping[str, Collection[str]]) -> None:
        self.grants = {tag: frozenset(roles) for tag, roles in grants.items()}

    def will_authorize(self, ctx: InvokeContext) -> None:
        for tag in sorted(ctx.tool.tags):
            if not self.grants.get(tag, frozenset()) & frozenset(ctx.user.roles):
                ctx.abort(f"{ctx.user.id} has no role that grants {tag}", code="forbidden")


@on(Stage.WILL_AUTHORIZE_INPUT, tags={"money"})
def limit_refund(ctx: InvokeContext) -> None:
    """A policy on the arguments: they are valid here, and frozen, so what is allowed is what runs."""
    if ctx.input["cents"] > REFUND_LIMIT:
        ctx.abort("over the limit for models", code="over_limit", public="A person has to make refunds of this size.")


class Quota(Hook):
    """At most ``at_once`` calls of one user under way; a place is given back however the call ends."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.held: Counter[tuple[str | None, str]] = Counter()

    def will_acquire_quota(self, ctx: InvokeContext) -> None:
        who = (ctx.tenant, ctx.user.id)
        if self.held[who] >= self.at_once:
            ctx.retry_after(500, f"{ctx.user.id} has {self.at_once} calls under way")
        self.held[who] += 1

    def did_release_quota(self, ctx: InvokeContext) -> None:
        self.held[ctx.tenant, ctx.user.id] -= 1


class Cache(Hook):
    """Remembers what tools answered; one user never gets what was looked up for another."""

    concern = "cache"

    def __init__(self, tools: Collection[str]) -> None:
        self.tools = tools
        self.answers: dict[tuple[str | None, ...], str] = {}

    def will_read_cache(self, ctx: InvokeContext) -> None:
        known = self.answers.get(_key(ctx))
        if known is not None:
            ctx.respond(json.loads(known))

    def will_write_cache(self, ctx: InvokeContext) -> None:
        if ctx.executed:  # also runs on hits
            self.answers[_key(ctx)] = json.dumps(ctx.output)


class ForgetAfterWrite(Hook):
    """Empties a tenant's part of the cache once a tool that may write was started, whatever came of it."""

    def __init__(self, cache: Cache, tools: Collection[str]) -> None:
        self.cache = cache
        self.tools = tools

    def will_execute(self, ctx: InvokeContext) -> None:
        ctx.data[self] = "started"

    def will_finalize_invoke(self, ctx: InvokeContext) -> None:
        if self in ctx.data:
            self.cache.answers = {key: value for key, value in self.cache.answers.items() if key[0] != ctx.tenant}


class Audit(Hook):
    """One row a call, of those that were refused, too. Arguments are people's data: only their hash is kept."""

    def will_execute(self, ctx: InvokeContext) -> None:
        ctx.data[self] = ctx.attempt

    def will_audit(self, ctx: InvokeContext) -> None:
        error, attempts = ctx.error, ctx.data.get(self, 0)
        row = (
            ctx.started_at.isoformat(),
            ctx.request_id,
            storable(ctx.tool_call.id),
            storable(ctx.tool_call.tool),
            ctx.user.id,
            ctx.tenant,
            ctx.outcome or Outcome.SUCCESS,
            None if error is None else getattr(error, "code", type(error).__name__),
            None if error is None else storable(str(error)),
            attempts,
            bool(ctx.cache_hit),
            ctx.input_hash if attempts or ctx.cache_hit else None,
        )
        db = ctx.get(AppContainer.db)
        with db:
            db.execute("insert into audit values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def storable(text: str) -> str:
    """A call id is the model's text: half a surrogate pair in it must not cost the row."""
    return text.encode("utf-8", "backslashreplace").decode()


def _key(ctx: InvokeContext) -> tuple[str | None, ...]:
    return ctx.tenant, ctx.user.id, ctx.tool_id, ctx.tool.version, ctx.input_hash
