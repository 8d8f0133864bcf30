"""The claim of one call in the effect ledger, and the facts that decide its outcome."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from typing import Any

from callgate.errors import ControlRespond, InvocationError, ProviderError, StoreConflict, ToolError
from callgate.hooks.context import InvokeContext
from callgate.hooks.effects import EffectRecorder
from callgate.hooks.plan import Plan
from callgate.hooks.selection import sort_for_stage, why_not
from callgate.hooks.stages import Stage
from callgate.providers.exits import PlainThreads
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import Alias, EffectRecord, EffectState, EffectStore
from callgate.runtime.effects.receipts import AWAITED


class Claim:
    """The claim of one call in the ledger, and the facts that decide its outcome.

    ``began``: a tool body has started; before that, the gate resolves dependencies. ``returned``: a body returned a
    value that is not converted to JSON yet. ``unclear``: a body failed without stating that it had no effect.
    ``undone``: the last execution failed after its body had returned. ``decided`` is the outcome that a transaction of
    the application has decided; ``carried`` is True where such a transaction carries the outcome.
    ``answered``: a body ended with a response other than an output, such as a ``ToolError``. ``records`` are audit rows
    that are written with the outcome. ``alias`` is the identity by the caller's key, beside a declared key.
    """

    answered = unclear = returned = undone = carried = False
    decided: EffectState | None = None
    joined: EffectStore | None = None
    alias: Alias | None = None
    records: Sequence[tuple[EffectRecorder[InvokeContext], dict[str, Any]]] = ()

    def __init__(
        self,
        host: Any,
        tenant: str,
        effect: EffectRecord,
        together: Sequence[EffectRecorder[InvokeContext]],
        began: bool,
    ) -> None:
        self.host = host
        self.began = began
        self.tenant = tenant
        self.effect = effect
        self.together = together

    @property
    def token(self) -> int:
        """The fencing token: a service that receives it can refuse requests with an older token."""
        return self.effect.token

    def in_transaction(self, connection: Any, threads: PlainThreads | None) -> None:
        """Change nothing: the gate's store is not in the database of the transaction."""

    def begin(self) -> None:
        """Record that a body starts."""
        self.began = True

    async def watch(self, body: Awaitable[Any]) -> object:
        """Run a body and record its error, even if an outer wrapper handles that error."""
        try:
            output = await body
        except BaseException as error:
            self.failed(error)
            raise
        self.undone = False
        return output

    def wrapper_failed(self, error: BaseException) -> None:
        """Record that a hook of the execution failed after the body had returned: it may have rolled the effect back.

        Only an error of the application can state ``no_effect``, such as that of a transaction. What ``ctx.abort`` or a
        ``ToolError`` says is meant for the body.
        """
        self.undone = True
        if isinstance(error, InvocationError) or not getattr(error, "no_effect", False):
            self.unclear = True

    def facts(self, ctx: InvokeContext) -> dict[str, bool]:
        """Return the facts before an execution, which ``roll_back`` restores."""
        return {
            "answered": self.answered,
            "unclear": self.unclear,
            "returned": self.returned,
            "undone": self.undone or not ctx.run.executed,
        }

    def roll_back(self, before: dict[str, bool], *, sure: bool = True) -> None:
        """Restore the facts before an execution that was rolled back; if that is not *sure*, its effect is unclear."""
        vars(self).update(before)
        self.unclear = self.unclear or not sure

    def failed(self, error: BaseException) -> None:
        """Record that a body ended with this error or with a response."""
        if not self.began:
            return
        told = isinstance(error, ControlRespond) or (isinstance(error, ToolError) and not error.no_effect)
        if told or self.returned:
            self.answered = True
        elif not getattr(error, "no_effect", False):
            self.unclear = True

    def state(self, ctx: InvokeContext) -> EffectState:
        """Return the outcome of the effect."""
        if self.decided is not None:
            return self.decided
        if ctx.run.executed and not self.undone:
            return EffectState.COMMITTED
        if self.unclear:
            return EffectState.COMMITTED if ctx.run.error is None else EffectState.UNKNOWN  # a fallback is an outcome
        return EffectState.COMMITTED if self.answered else EffectState.NO_EFFECT


class CarriedClaim(Claim):
    """A claim whose outcome a transaction of the application carries, with the rows that are the effect.

    Until that transaction commits, the row of the claim is ``claimed``: a process that dies leaves no effect. The outcome
    is written under the claim's token, so a transaction that ends after its lease was lost cannot commit. ``joined`` is
    the ledger in the transaction of this attempt.
    """

    carried = True

    def __init__(self, ledger: Any, *facts: Any) -> None:
        super().__init__(*facts)
        self._ledger = ledger

    def in_transaction(self, connection: Any, threads: PlainThreads | None) -> None:
        """Let the transaction of *connection* carry the outcome. Raises ``StoreError`` for another kind of object."""
        self.joined = self._ledger.store.effects_in(connection, threads)
        self._connection, self._threads = connection, threads

    def begin(self) -> None:
        """Record that a body starts.

        Raises:
            ProviderError: no transaction carries the outcome.
        """
        if self.joined is None and self.host.registry.world.overrides:  # a test puts another session in its place
            self.carried = False
        elif self.joined is None:
            raise ProviderError(
                "a provider takes EffectClaim and let no transaction carry the outcome; before its `yield` it calls "
                "in_transaction(connection)"
            )
        super().begin()

    async def write_outcome(self) -> None:
        """Write the outcome in the transaction, as its last statement; the receipt follows after the commit.

        Raises:
            StoreConflict: the lease of the claim was lost; the transaction must roll back.
            StoreError: the statement failed.
        """
        effect = self.effect
        assert self.joined is not None  # see ``begin``
        done = await self.joined.settle(
            self.tenant,
            effect.key,
            effect.token,
            EffectState.COMMITTED,
            at=self._ledger.now(),
            receipt=AWAITED,
            aliases=self.alias is not None,
        )
        if not done:
            raise StoreConflict("the claim was lost: its lease was over, or the connection is of another database")

    async def undo(self) -> None:
        """Roll the transaction back, so that a provider that hides the error of the attempt cannot commit its rows."""
        roll_back = self._connection.rollback
        rolling = roll_back() if self._threads is None else await self._threads.run(roll_back)
        if inspect.isawaitable(rolling):
            await rolling

    async def ask(self) -> EffectState:
        """Return the outcome after a commit that failed without saying whether it took place.

        Raises:
            StoreError: the store did not respond.
        """
        effect, ledger = self.effect, self._ledger.effects
        aliased = self.alias is not None
        if await ledger.settle(
            self.tenant, effect.key, effect.token, EffectState.NO_EFFECT, at=self._ledger.now(), aliases=aliased
        ):
            return EffectState.NO_EFFECT
        found = await ledger.get(self.tenant, effect.key)
        mine = found is not None and found.token == effect.token and found.state is EffectState.COMMITTED
        return EffectState.COMMITTED if mine else EffectState.NO_EFFECT


def waits_for_itself(ctx: InvokeContext, tenant: str, key: str) -> bool:
    """Return whether an outer call of this nested call runs the same effect."""
    outer = ctx.run.outer
    while outer is not None:
        claim = outer.claim
        if claim is not None and (claim.tenant, claim.effect.key) == (tenant, key):
            return True
        outer = outer.outer
    return False


def recorders_of(plan: Plan, store: Store) -> tuple[EffectRecorder[InvokeContext], ...]:
    """Return the hooks that write their rows in the ledger's transaction, in the order of ``will_audit``.

    Each hook locks its chain of rows during the transaction. To avoid deadlocks, all calls lock in the same order and
    lock each chain once. A hook that is registered twice writes its rows outside of the transaction.
    """
    found = [
        one.hook
        for one in sort_for_stage(Stage.WILL_AUDIT, plan.registrations)
        if hasattr(one.hook, "joins_ledger")
        and Stage.WILL_AUDIT in one.all_stages()
        and why_not(one, plan.definition) is None
        and (one.filter, one.tenants, one.is_class, one.option("mode", "enforce")) == (None, None, False, "enforce")
        and one.hook.joins_ledger(store)
    ]
    return tuple(hook for hook in found if found.count(hook) == 1)
