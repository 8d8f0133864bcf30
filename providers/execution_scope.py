"""The scope of one execution of a tool: instances that end inside the claim of its effect (a unit of work)."""

from __future__ import annotations

from typing import Protocol

from callgate.providers.exits import Exit, PlainThreads
from callgate.providers.ranks import Rank
from callgate.providers.recipe import MISSING
from callgate.providers.scope import ProviderScope


class JoinableClaim(Protocol):
    """A claim in the effect ledger whose outcome a transaction of the application may carry."""

    is_joinable: bool

    def in_transaction(self, connection: object, threads: PlainThreads | None) -> None:
        """Let the transaction of *connection* carry the outcome."""
        ...


class RunningCall(Protocol):
    """The state of the call whose tool runs."""

    @property
    def claim(self) -> JoinableClaim | None:
        """The claim of the call, where its tool has an effect."""
        ...

    def request_scope(self) -> ProviderScope:
        """Return the scope of the call."""
        ...


class EffectClaim:
    """The claim of the running call in the effect ledger, for providers of the scope ``"execution"``.

    A factory takes it as a parameter: ``effects: Annotated[EffectClaim, Provide[EffectClaim]]``. Its transaction then
    carries the outcome of the effect; see ``in_transaction``.
    """

    __slots__ = ("_run", "_threads")
    bound_in_executions = True  # see ``Recipes``

    def __init__(self, run: RunningCall, threads: PlainThreads | None) -> None:
        self._run, self._threads = run, threads

    def in_transaction(self, connection: object) -> None:
        """Let the transaction of *connection* carry the outcome of the effect.

        The gate writes the outcome as the last statement of the transaction. Both are committed together or not at all,
        so the outcome is never unknown. If the attempt fails, the gate rolls the transaction back before the factory sees
        the error. Call it once in the factory, before the ``yield``; the factory commits after it.

        It changes nothing for a tool without an effect, and for a gate whose store is not in a SQL database.

        Args:
            connection: a ``Session``, ``AsyncSession``, ``Connection`` or ``AsyncConnection`` of SQLAlchemy, in a
                transaction on the database of the gate's store.

        Raises:
            StoreError: the connection is of another kind, or its database of another kind than the store's.
        """
        claim = self._run.claim
        if claim is not None and claim.is_joinable:
            claim.in_transaction(connection, self._threads)


class ExecutionScope(ProviderScope):
    """The instances of one execution, within the scope of its *request*. ``threads`` run the code of plain generators."""

    __slots__ = ("_request", "threads")

    def __init__(self, run: RunningCall, threads: PlainThreads | None = None) -> None:
        request = run.request_scope()
        super().__init__(request.world, Rank.EXECUTION, request.session)
        self._request: ProviderScope = request
        self.threads = threads
        self.bindings[EffectClaim] = EffectClaim(run, threads)

    def home(self, rank: Rank) -> ProviderScope:
        """Return the scope that keeps instances of a rank."""
        return self if rank is Rank.EXECUTION else self._request if rank is Rank.REQUEST else self._request.home(rank)

    def bound(self, key: object) -> object:
        """Return the instance that is bound for a key, here, in the request or its session, or ``MISSING``."""
        found = self.bindings.get(key, MISSING)
        return self._request.bound(key) if found is MISSING else found

    def leave(self) -> list[Exit]:
        """End the execution, and return the instances to close in order; the request goes on."""
        return self.end()
