"""The gate under test: its tools, its one store, and a way past the gate to the rows in it."""

from __future__ import annotations

from typing import Any, cast

from callgate import (
    Effects,
    Gate,
    Hook,
    InvokeContext,
    Options,
    Suspensions,
    ToolContext,
    ToolError,
    User,
    tool,
)
from callgate.hooks import RequireApproval
from callgate.providers.principal import ANONYMOUS
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import EffectRecord, EffectState, SuspensionRecord
from callgate.providers.stores.memory.store import MemoryStore
from callgate.providers.stores.sql.database.part import statement
from callgate.providers.stores.sql.store import SqlStore
from callgate.providers.stores.sql.suspensions import SUSPENSION_COLUMNS
from callgate.testing import FakeClock
from tests.runtime.effects.machine_model import ANSWER, BOSS, IN_BODY, SMALL, SOMEBODY, WITHIN, Ran, rules_of, text_of

ANN = User("ann", "acme", {"clerk", "lead"})
AMY = User("amy", "acme", {"clerk"})
RAE = User("ann", "rival", {"clerk"})
"""Another person of the same name."""
CALLERS = (ANN, AMY, RAE)
BOB, CID = User("bob", "acme", {"lead"}), User("cid", "acme", {"lead"})
DAN = User("dan", "acme", {"boss"})
EVE = User("eve", "acme")
ROB = User("rob", "rival", {"lead", "boss"})
NOBODY = User(ANONYMOUS.id, "acme", {"lead", "boss"})
DECIDERS = (BOB, CID, DAN, EVE, ROB, NOBODY, ANONYMOUS, *CALLERS)
VIEWERS = (ANN, BOB, DAN, ROB)

KEYS = {name: name * 32 for name in "abc"}


class World:
    """One store for a whole search; everything else begins anew with ``begin``."""

    gate: Gate

    def __init__(self, store: Any, clock: FakeClock) -> None:
        self.store, self.clock = store, clock
        self.made = {version: self._tools(version) for version in ("1", "2")}
        self.guard = Guard(self)

    async def begin(self) -> None:
        """An empty store and nothing done."""
        if isinstance(self.store, MemoryStore):
            self.store.__init__(self.clock.time)  # type: ignore[misc]  # the one that the gates know
        else:
            for table in ("waits", "effects", "versions"):
                await self.store._database.write(statement(f"DELETE FROM callgate_{table}"), {})
        self.ran: list[Ran] = []
        self.drift = 0
        self.status: dict[tuple[str, str], str] = {}
        self.tokens: dict[tuple[str, str], int] = {}
        self.faults: list[str] = []

    async def deploy(self, version: str, policy: str, keys: tuple[str, ...]) -> None:
        """Another process takes over: new tools, policies and keys on what the last one left in the store."""
        hooks: list[Any] = [self.guard]
        if policy == "strict":
            hooks.append(RequireApproval(BOSS, tools=["pay"]))
        self.gate = Gate(
            self.made[version],
            hooks,
            store=self.store,
            options=Options(clock=self.clock, lazy=True),
            effects=Effects(durable=False, wait=0.0),
            allow_unguarded=True,
            signing_keys=[KEYS[key] for key in keys],
            suspensions=Suspensions(policy_version=policy, refresh_user=self.refresh),
        )
        await self.gate.__aenter__()

    async def end(self) -> None:
        """The process ends."""
        await self.gate.__aexit__(None, None, None)

    def refresh(self, user: User) -> User | None:
        """Who somebody is by now."""
        now = {"gone": None, "other": User("mallory", user.tenant, user.roles), "lost": User(user.id, user.tenant)}
        return now.get(self.status.get((user.id, user.tenant or ""), ""), user)

    # ------------------------------------------------------------------ tools

    def _tools(self, version: str) -> list[Any]:
        def needs(arguments: dict[str, Any]) -> Any:
            rules = rules_of("pay", arguments, "plain")
            return rules[0] if rules else False

        options: dict[str, dict[str, Any]] = {
            "pay": {"effect": "irreversible", "requires_approval": needs},
            "send": {"effect": "keyed", "key": ("n",), "requires_approval": SMALL},
            "post": {"effect": "irreversible", "dedupe": "arguments", "within": WITHIN},
            "ping": {"effect": "idempotent"},
            "peek": {"effect": "read", "requires_approval": SOMEBODY},
            "draft": {"effect": "irreversible", "resumable": True},
            "fill": {"effect": "irreversible", "resumable": True},
        }
        return [self._tool(name, version, given) for name, given in options.items()]

    def _tool(self, name: str, version: str, options: dict[str, Any]) -> Any:
        async def body(n: int, how: str, ctx: ToolContext) -> int:
            answer = self._asked(name, ctx)
            await self._watch(ctx)
            if how not in {"abort", "later"}:
                user = ctx.user
                self.ran.append(Ran(name, version, text_of({"n": n, "how": how}), user.id, user.tenant or ""))
            output: int = self._end(how, len(self.ran) if answer is None else answer, ctx)
            return output

        schema = {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "how": {"type": "string"}},
            "required": ["n", "how"],
            "additionalProperties": False,
        }
        return tool(name=name, version=version, description="Do it.", parameters=schema, **cast("Any", options))(body)

    @staticmethod
    def _asked(name: str, ctx: Any) -> Any:
        if name == "draft":
            ctx.suspend("approval", "Sure?", by=IN_BODY)
        if name == "fill":
            return ctx.suspend("input", "How many?", schema={"type": "integer"}, expires=ANSWER)
        return None

    @staticmethod
    def _end(how: str, output: Any, ctx: Any) -> Any:
        if how == "responds":
            ctx.respond(-1)
        if how == "tool_error":
            raise ToolError("No.")
        if how == "raise":
            raise RuntimeError("broken")
        if how == "abort":
            ctx.abort("not now")
        if how == "later":
            ctx.retry_after(5)
        return "text" if how == "bad" else output

    async def _watch(self, ctx: Any) -> None:
        """While a body runs, its effect is ``running`` under a token that this key never had before."""
        claim = ctx._ctx.run.claim
        if claim is None:
            return
        at = (ctx.user.tenant or "", claim.effect.key)
        kept = await self.store.effects.get(*at)
        if kept is None or kept.state is not EffectState.RUNNING or kept.token != ctx.fencing_token:
            self.faults.append(f"a body ran while the ledger said {kept}")
        if ctx.fencing_token <= self.tokens.get(at, 0):
            self.faults.append(f"token {ctx.fencing_token} was there before")
        self.tokens[at] = ctx.fencing_token

    # ------------------------------------------------------------------ past the gate

    async def rows(self) -> dict[tuple[str, str], SuspensionRecord]:
        """Every suspended call in the store."""
        if isinstance(self.store, MemoryStore):
            return dict(self.store.suspensions._suspensions)
        found = await self.store._database.rows(
            statement(f"SELECT tenant, {SUSPENSION_COLUMNS.listed} FROM callgate_waits"), {}
        )
        return {(tenant, row[0]): SUSPENSION_COLUMNS.record(row) for tenant, *row in found}

    async def put_row(self, at: tuple[str, str], row: SuspensionRecord, tenant: str) -> None:
        """Put a row in the place of another, as somebody does who can write in the store."""
        if isinstance(self.store, MemoryStore):
            del self.store.suspensions._suspensions[at]
            self.store.suspensions._suspensions[tenant, row.id] = row
            return
        gone = "DELETE FROM callgate_waits WHERE tenant = :tenant AND id = :id"
        await self.store._database.write(statement(gone), {"tenant": at[0], "id": at[1]})
        await self.store.suspensions.put(tenant, row)

    async def effects(self) -> dict[tuple[str, str], EffectRecord]:
        """The ledger."""
        return {(tenant, one.key): one for tenant, one in await self.store.effects.list(None, limit=10_000)}


class Guard(Hook):
    """Who has lost the role may call nothing; and arguments that drift, so that a call comes to something else."""

    def __init__(self, world: World) -> None:
        self.world = world

    def will_authorize(self, ctx: InvokeContext) -> None:
        if "clerk" not in ctx.user.roles:
            ctx.abort("no clerk any more", code="lost")

    def will_normalize_input(self, ctx: InvokeContext) -> None:
        if ctx.tool_id == "pay" and self.world.drift:
            ctx.input = {**ctx.input, "n": ctx.input["n"] + self.world.drift}


class Kept(SqlStore):
    """SQLite in memory that outlives the gates on it, as a file does."""

    durable = False

    async def close(self) -> None:
        """Not yet."""


def store_of(kind: str, clock: FakeClock) -> Store:
    """A store for a search."""
    return MemoryStore(clock.time) if kind == "memory" else Kept("sqlite://", clock.time)
