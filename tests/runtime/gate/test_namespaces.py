"""Two services with gates on one store: nothing that one of them keeps counts in the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, Hook, Jobs, Options, Outcome, ToolResult, User, tool
from callgate.errors import StoreError
from callgate.hooks import Audit, Cache, CircuitBreaker, Concurrency, Consent, Quota
from callgate.jobs import EmbeddedJobs
from callgate.providers.stores.address import in_namespace
from callgate.stores import JobState, Store, store_at
from tests.providers.stores.backends import DURABLE, KINDS, place

ANN = User("ann", "acme")
COUNT: list[int] = []
MEANWHILE: list[Callable[[], Awaitable[None]]] = []
HOOKS: dict[str, Callable[[Any], Hook]] = {
    "cached output": lambda store: Cache(60.0, store=store),
    "consent": lambda store: Consent("mail", store=store),
    "rate limit": lambda store: Quota("1/day", store=store),
    "permits": lambda store: Concurrency(1, shared=True, store=store),
    "circuit": lambda store: CircuitBreaker(failure_threshold=1, shared=True, store=store),
    "audit rows": lambda store: Audit(store=store),
}


@tool(effect="read")
async def look(n: int) -> int:
    """Look something up."""
    COUNT.append(n)
    if MEANWHILE:
        await MEANWHILE.pop()()
    if n < 0:
        raise OSError("broken")
    return len(COUNT)


Stores = Callable[[], Store]
"""Returns the store of one more process."""


@pytest.fixture
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Stores]:
    with place(request.param, tmp_path) as (address, prefix):
        if request.param == "redis":
            from callgate.providers.stores.redis.store import RedisStore

            yield lambda: RedisStore(address, prefix=prefix)
        elif address.endswith("://"):  # in the memory of one process
            one = store_at(address)
            yield lambda: one
        else:
            yield lambda: store_at(address)


def sees(what: str, result: ToolResult) -> bool:
    """Return whether a call shows what an equal call of the other service has kept."""
    match what:
        case "cached output":
            return bool(result.output == 1)
        case "consent":
            return not isinstance(result.output, dict)
        case _:
            return result.outcome is not Outcome.SUCCESS


async def crosses(what: str, stores: Stores, own: bool, names: tuple[str, str]) -> bool:
    """Return whether the second service sees what the first one has kept.

    With *own* the hooks have the store, and the gates have others.
    """
    COUNT.clear()
    async with AsyncExitStack() as closing:
        kept, hooks, gates = [], [], []
        for name in names:
            store = stores()
            await store.open()
            closing.push_async_callback(store.close)
            kept.append(in_namespace(store, name))
            hooks.append(HOOKS[what](store if own else None))
            given = None if own else store
            made = Gate([look], [hooks[-1]], allow_unguarded=True, store=given, options=Options(namespace=name))
            gates.append(await closing.enter_async_context(made))
        first, second = gates
        seen: list[bool] = []

        async def look_from_second() -> None:
            seen.append(sees(what, await second.call("look", {"n": 1}, user=ANN)))

        if what == "permits":
            MEANWHILE.append(look_from_second)
        result = await first.call("look", {"n": -1 if what == "circuit" else 1}, user=ANN)
        assert result.outcome is (Outcome.ERROR if what == "circuit" else Outcome.SUCCESS)
        if isinstance(hooks[0], Consent):
            await hooks[0].grant(ANN, "look", "mail")
        if what == "audit rows":
            seen.append(bool([row async for row in kept[1].audit.read(None)]))
        elif what != "permits":
            await look_from_second()
        return seen.pop()


@pytest.mark.parametrize("own", [False, True], ids=["store of the gate", "store of the hook"])
@pytest.mark.parametrize("stores", KINDS, indirect=True)
async def test_what_a_hook_keeps_for_one_service_does_not_count_in_the_other(
    stores: Stores, own: bool, request: pytest.FixtureRequest
) -> None:
    """Issue 34: service B got A's cached output, and A's consents counted in B."""
    parts = [what for what in HOOKS if what != "audit rows" or "redis" not in request.node.name]
    for what in parts:
        assert not await crosses(what, stores, own, ("a", "b")), what
    for what in parts:
        assert await crosses(what, stores, own, ("c", "c")), f"the control: {what} of one service"


@pytest.mark.parametrize("stores", ["memory", "sqlite-file", "redis"], indirect=True)
async def test_services_share_the_store_of_a_hook_that_is_in_a_namespace(stores: Stores) -> None:
    """The option for what two services have in common, such as the rate limit of a partner."""

    def shared() -> Store:
        return in_namespace(stores(), "shared")

    assert await crosses("rate limit", shared, True, ("a", "b"))


@pytest.mark.parametrize("names", [("a", "b"), ("a", "a")], ids=["two services", "control: one service"])
@pytest.mark.parametrize("stores", DURABLE, indirect=True)
async def test_the_rates_of_queues_are_those_of_one_service(stores: Stores, names: tuple[str, str]) -> None:
    """Issue 34."""
    states = []
    async with AsyncExitStack() as closing:
        for name in names:
            gate = Gate(
                [look],
                allow_unguarded=True,
                store=stores(),
                signing_keys=["a key of sixteen bytes"],
                jobs=Jobs(engine=EmbeddedJobs(0), rates={"mail": (1, 86_400.0)}),
                options=Options(namespace=name),
            )
            await closing.enter_async_context(gate)
            await gate.submit("look", {"n": 1}, user=ANN, queue="mail")
            states.append(await gate.jobs.run_invocation(queues=["mail"]))
    second = JobState.QUEUED if names == ("a", "a") else JobState.DONE
    assert states == [JobState.DONE, second]


@pytest.mark.parametrize("names", [("", ""), ("a", "b"), ("", "b")])
@pytest.mark.parametrize("stores", ["sqlite-memory", "sqlite-file", "postgresql", "redis"], indirect=True)
async def test_a_store_that_gates_share_closes_with_the_last_of_them(stores: Stores, names: tuple[str, str]) -> None:
    """Issue 34: the first gate that closed took the store away from the other."""
    store = stores()
    first, second = (
        Gate([look], [Cache(60.0)], allow_unguarded=True, store=store, options=Options(namespace=name))
        for name in names
    )
    async with second:
        async with first:
            await first.call("look", {"n": 1}, user=ANN)
        kept = (await second.call("look", {"n": 2}, user=ANN)).output
        assert (await second.call("look", {"n": 2}, user=ANN)).output == kept, "from the cache in the store"
        await second.store.cache.get("t", "k")
    with pytest.raises(StoreError, match="open"):
        await store.cache.get("t", "k")
    async with first:  # and it can be opened again
        assert (await first.call("look", {"n": 3}, user=ANN)).outcome is Outcome.SUCCESS
