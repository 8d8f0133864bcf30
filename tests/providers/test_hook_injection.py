"""Dependencies of hooks: marked parameters of their methods and constructors, in the scope of the call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import pytest

from callgate import Gate, Hook, InvokeContext, Outcome, Provide, Scoped, ToolCall, tool
from callgate.errors import ProviderError
from tests.runtime.gate.making import USER

LOG: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    LOG.clear()


class Policy:
    """Made at once, for a request."""

    def __init__(self) -> None:
        LOG.append("+policy")


async def open_tx() -> AsyncIterator[list[str]]:
    tx: list[str] = []
    LOG.append("+tx")
    yield tx
    LOG.append(f"-tx {' '.join(tx)}".rstrip())


async def open_basket() -> AsyncIterator[list[str]]:
    LOG.append("+basket")
    yield []
    LOG.append("-basket")


async def connect() -> str:
    return "connected"


PROVIDED: dict[Any, Any] = {
    "db": connect,
    "tx": Scoped("request", open_tx),
    "policy": Scoped("request", Policy),
    "basket": Scoped("session", open_basket),
}

Db = Annotated[str, Provide["db"]]
Tx = Annotated[list[str], Provide["tx"]]
Basket = Annotated[list[str], Provide["basket"]]


@tool(effect="read")
async def work(n: int = 0, *, tx: Tx) -> str:
    tx.append("tool")
    return " ".join(tx)


def gate_of(*hooks: Any, tools: Any = (work,)) -> Gate:
    return Gate(tools, hooks, provide=PROVIDED, allow_unguarded=True)


class Methods(Hook):
    """Takes from every scope, in plain and async methods, with stages of every section."""

    def will_authorize(self, ctx: InvokeContext, db: Db, tx: Tx) -> None:  # type: ignore[override]  # the other spelling; with a default, checkers are content, too
        tx.append(f"authorize:{db}")

    async def will_normalize_input(
        self, ctx: InvokeContext, *, tx: list[str] = Provide["tx"], basket: list[str] = Provide["basket"]
    ) -> None:
        tx.append("normalize")
        basket.append("seen")

    def did_execute(self, ctx: InvokeContext, tx: list[str] = Provide["tx"]) -> None:
        tx.append("did")

    async def will_audit(self, ctx: InvokeContext, tx: list[str] = Provide["tx"]) -> None:
        tx.append("audit")

    def will_finalize_invoke(self, ctx: InvokeContext, tx: list[str] = Provide["tx"]) -> None:
        tx.append("finalise")


class Constructed(Hook):
    """A hook class: one instance a call, made with its dependencies."""

    def __init__(self, db: Db, tx: Tx) -> None:
        LOG.append("hook made")
        self.db, self.tx = db, tx

    def will_authorize(self, ctx: InvokeContext) -> None:
        self.tx.append(f"authorize:{self.db}")

    async def will_normalize_input(self, ctx: InvokeContext, *, basket: list[str] = Provide["basket"]) -> None:
        self.tx.append("normalize")
        basket.append("seen")

    def did_execute(self, ctx: InvokeContext) -> None:
        self.tx.append("did")

    async def will_audit(self, ctx: InvokeContext) -> None:
        self.tx.append("audit")

    def will_finalize_invoke(self, ctx: InvokeContext) -> None:
        self.tx.append("finalise")


@pytest.mark.parametrize("hook", [Methods(), Methods, Constructed], ids=["object", "class", "constructor"])
@pytest.mark.parametrize("session", [None, "s"])
@pytest.mark.parametrize("trace", [False, True])
async def test_hooks_and_tool_share_one_request_scope(hook: Any, session: str | None, trace: bool) -> None:
    """Contract 84, 85, C1f: methods and constructors, plain and async, from every scope."""
    async with gate_of(hook) as gate:
        result = await gate.call(ToolCall(id="c", name="work"), user=USER, session_id=session, trace=trace)
        assert result.output == "authorize:connected normalize tool"
        said = [line for line in LOG if line != "hook made"]
        assert said[:2] == ["+tx", "+basket"]
        assert said[2] == "-tx authorize:connected normalize tool did audit finalise"
        assert said[3:] == ([] if session else ["-basket"])
        assert LOG.count("hook made") == (hook is Constructed)
    assert LOG[-1] == "-basket"


async def test_a_filter_of_a_hook_class_sees_what_its_constructor_got() -> None:
    """Contract 92, C1f."""

    class Picky(Hook):
        def __init__(self, db: Db) -> None:
            LOG.append("made")
            self.db = db

        async def filter(self, ctx: InvokeContext) -> bool:
            LOG.append(f"asked {self.db}")
            return bool(ctx.user.id == "another user")

        def will_authorize(self, ctx: InvokeContext) -> None:
            raise AssertionError("filtered out")

        def will_audit(self, ctx: InvokeContext, tx: list[str] = Provide["tx"]) -> None:
            raise AssertionError("filtered out")

    @tool(effect="read")
    async def plain() -> str:
        return "ok"

    async with gate_of(Picky, tools=[plain]) as gate:
        assert await gate.invoke(plain, user=USER) == "ok"
    assert LOG == ["made", "asked connected", "asked connected"], "and nothing is made for a method that does not run"


async def test_releases_get_what_they_ask_for_and_see_it_open() -> None:
    """Contract C1, C1b: the request's instances are closed after the last release."""

    class Quota(Hook):
        async def will_acquire_quota(self, ctx: InvokeContext, tx: list[str] = Provide["tx"]) -> None:
            tx.append("acquired")

        async def did_release_quota(
            self, ctx: InvokeContext, *, tx: list[str] = Provide["tx"], db: str = Provide["db"]
        ) -> None:
            tx.append(f"released:{db}")

    class Place(Hook):
        def __init__(self, tx: Tx) -> None:
            self.tx = tx

        def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
            self.tx.append("place")

        def did_release_semaphore(self, ctx: InvokeContext) -> None:
            self.tx.append("free")

    async with gate_of(Quota(), Place) as gate:
        assert (await gate.call(ToolCall(id="c", name="work"), user=USER)).ok
    assert LOG == ["+tx", "-tx acquired place tool free released:connected"]


@pytest.mark.parametrize("is_class", [False, True])
async def test_what_stands_around_the_tool_is_supplied_as_well(is_class: bool) -> None:
    """Contract 93."""

    class Around(Hook):
        async def around_execute(
            self, ctx: InvokeContext, next: Callable[[], Any], tx: list[str] = Provide["tx"]
        ) -> Any:
            tx.append("in")
            output = await next()
            tx.append("out")
            return output

    async with gate_of(Around if is_class else Around()) as gate:
        assert await gate.invoke(work, user=USER) == "in tool"
    assert LOG == ["+tx", "-tx in tool out"]


async def test_a_hook_that_denies_keeps_the_tools_dependencies_unmade() -> None:
    """Contract 55, I7."""

    class No(Hook):
        def will_authorize(self, ctx: InvokeContext, policy: Policy = Provide["policy"]) -> None:
            ctx.abort("no")

    async with gate_of(No()) as gate:
        assert (await gate.call(ToolCall(id="c", name="work"), user=USER)).outcome is Outcome.DENIED
    assert LOG == ["+policy"]


async def test_a_gatekeeper_whose_dependency_fails_denies() -> None:
    """Contract 55, I6: fail closed."""

    async def broken() -> str:
        raise ConnectionError("dsn=SECRET")

    class Needs(Hook):
        def will_authorize(self, ctx: InvokeContext, it: str = Provide["it"]) -> None: ...

    class Made(Hook):
        def __init__(self, it: Annotated[str, Provide["it"]]) -> None: ...

        def will_authorize(self, ctx: InvokeContext) -> None: ...

    for hook in (Needs(), Needs, Made):
        provided = {**PROVIDED, "it": Scoped("request", broken)}
        async with Gate([work], [hook], provide=provided) as gate:
            result = await gate.call(ToolCall(id="c", name="work"), user=USER)
        assert result.outcome is Outcome.DENIED
        assert "SECRET" not in f"{result} {result.to_status()}"
    assert not LOG


@pytest.mark.parametrize("where", ["method", "constructor"])
def test_what_nobody_provides_is_refused_with_the_name_of_the_hook(where: str) -> None:
    """Contract 85, I19."""

    class Lost(Hook):
        def will_authorize(self, ctx: InvokeContext, it: str = Provide["nothing"]) -> None: ...

    class Made(Hook):
        def __init__(self, it: Annotated[str, Provide["nothing"]]) -> None: ...

        def will_authorize(self, ctx: InvokeContext) -> None: ...

    wanted = r"Lost.will_authorize: parameter 'it' needs 'nothing'" if where == "method" else r"Made: parameter 'it'"
    with pytest.raises(ProviderError, match=wanted):
        gate_of(Lost() if where == "method" else Made)


async def test_an_override_reaches_hooks() -> None:
    """Contract 85."""
    async with gate_of(Constructed) as gate:
        with gate.override({"db": "fake"}):
            assert (await gate.invoke(work, user=USER)).startswith("authorize:fake")
        assert (await gate.invoke(work, user=USER)).startswith("authorize:connected")


async def test_each_call_has_its_own_instance_of_a_hook_class() -> None:
    """Contract C1f, I8."""
    async with gate_of(Constructed) as gate:
        results = await gate.call_many([ToolCall(id=str(n), name="work") for n in range(20)], user=USER)
    assert {result.output for result in results} == {"authorize:connected normalize tool"}
    assert LOG.count("hook made") == LOG.count("+tx") == 20
