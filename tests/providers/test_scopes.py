"""The rules of scopes: what registration refuses, what a request's end does, and what tests may replace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

import pytest
from dependency_injector import containers, providers

from callgate import (
    Denied,
    Gate,
    Hook,
    InvokeContext,
    Outcome,
    Provide,
    Scoped,
    ToolCall,
    ToolContext,
    ToolFailed,
    tool,
)
from callgate.errors import ProviderError
from callgate.providers.registry import ProviderRegistry
from callgate.runtime.testing.virtual_time import StepLoop
from tests.harness.steploop import on_virtual_time
from tests.runtime.gate.making import USER

LOG: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    LOG.clear()


class Db:
    """The dependency that a fake replaces."""

    def __init__(self, name: str = "real") -> None:
        self.name = name


async def open_db() -> AsyncIterator[Db]:
    LOG.append("+db")
    yield Db()
    LOG.append("-db")


async def begin(db: Db) -> AsyncIterator[tuple[str, Db]]:
    LOG.append("+tx")
    try:
        yield ("tx", db)
    except BaseException as error:
        LOG.append(f"rollback {type(error).__name__}")
        raise
    finally:
        LOG.append("-tx")


class App(containers.DeclarativeContainer):
    """One container for the life of the service."""

    config = providers.Configuration()
    db = Scoped("global", open_db)
    tx = Scoped("request", begin, db)
    repo = providers.Factory(lambda tx, table: (table, tx), tx=tx, table=config.table)
    service = providers.Factory(lambda repo, scale: (repo, scale), repo=repo, scale=providers.Callable(max, 1, 2))


@tool(effect="read")
async def work(n: int = 0, *, tx: Annotated[tuple[str, Db], Provide[App.tx]], ctx: ToolContext) -> str:
    held: Any = ctx
    assert await held.resolve(App.tx) is tx
    if n < 0:
        raise ValueError(n)
    return str(tx[1].name)


def app() -> Any:
    made: Any = App()
    made.config.from_dict({"table": "orders"})
    return made


def taking(token: Any, name: str = "take") -> Any:
    """A tool that takes one token."""

    async def take(*, it: Annotated[Any, Provide[token]]) -> str:
        return str(it)

    return tool(effect="read", name=name)(take)


# ---------------------------------------------------------------------- what registration refuses


def keep(**given: Any) -> Any:
    return given


class Narrow(containers.DeclarativeContainer):
    """Everything in it keeps what is closed before it."""

    tx = Scoped("request", open_db)
    basket = Scoped("session", open_db)
    session = Scoped("session", keep, tx=tx)
    whole = Scoped("global", keep, basket=basket)
    single = providers.Singleton(keep, tx=tx)
    resource = providers.Resource(keep, tx=tx)
    factory = providers.Factory(keep, tx=tx)
    through = Scoped("session", keep, factory=factory)
    single_through = providers.Singleton(keep, factory=factory)


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("session", "tx"),
        ("whole", "basket"),
        ("single", "tx"),
        ("resource", "tx"),
        ("through", "factory"),
        ("single_through", "factory"),
    ],
)
def test_what_lives_longer_never_keeps_what_lives_shorter(name: str, needs: str) -> None:
    """Contract 84, I19: refused at registration, with the names of both."""
    with pytest.raises(ProviderError, match=rf"{name} lasts .* needs {needs}, which lasts"):
        Gate([taking(getattr(Narrow, name))], container=Narrow())


def test_the_same_holds_for_factories_by_token_and_what_they_are_marked_with() -> None:
    """Contract 84."""

    async def narrow() -> int:
        return 1

    async def middle(it: Annotated[int, Provide["narrow"]]) -> int:
        return it

    async def wide(it: Annotated[int, Provide["middle"]]) -> int:
        return it

    given = {"narrow": Scoped("request", narrow), "middle": Scoped("request", middle), "wide": wide}
    with pytest.raises(
        ProviderError, match=r"'wide' lasts for the lifespan of the gate and needs 'middle', .* one request"
    ):
        Gate([taking("wide")], provide=given)


async def test_who_takes_nobody_is_checked_as_the_gate_opens() -> None:
    """Contract 84, 85."""

    async def lost(it: Annotated[int, Provide["nothing"]]) -> int:
        return it

    for source in (lost, Scoped("session", lost)):
        with pytest.raises(ProviderError, match=r"the gate needs 'nothing' \(through 'lost'\), which has no provider"):
            async with Gate(provide={"lost": source}):
                raise AssertionError("it opened")
    with pytest.raises(ProviderError, match="session lasts"):
        async with Gate(container=Narrow()):
            raise AssertionError("it opened")


async def one(it: Annotated[int, Provide["two"]]) -> int:
    return it


async def two(it: Annotated[int, Provide["three"]]) -> int:
    return it


async def three(it: Annotated[int, Provide["one"]]) -> int:
    return it


async def itself(it: Annotated[int, Provide["itself"]]) -> int:
    return it


def test_providers_that_need_each_other_are_named_with_their_path() -> None:
    """Contract 85, I19."""
    given = {name: Scoped("request", globals()[name]) for name in ("one", "two", "three", "itself")}
    with pytest.raises(ProviderError, match="'two' -> 'three' -> 'one' -> 'two'"):
        Gate([taking("two")], provide=given)
    with pytest.raises(ProviderError, match="'itself' -> 'itself'"):
        Gate([taking("itself")], provide=given)


def test_what_nobody_provides_is_named_with_its_path() -> None:
    """Contract 85, I19."""

    class Lacking(containers.DeclarativeContainer):
        settings: Any = providers.Dependency()
        db = Scoped("global", keep, settings=settings)
        tx = Scoped("request", keep, db=db)
        repo = providers.Factory(keep, tx=tx)

    with pytest.raises(ProviderError, match=r"tool 'take': parameter 'it' needs settings \(through repo -> tx -> db\)"):
        Gate([taking(Lacking.repo)], container=Lacking())
    filled: Any = Lacking(settings=providers.Object({}))
    assert Gate([taking(Lacking.repo)], container=filled)


@pytest.mark.parametrize(("scope", "factory"), [("galaxy", keep), (7, keep), ("request", 7)])
def test_a_scope_that_is_none_and_a_factory_that_cannot_be_called_are_refused(scope: Any, factory: Any) -> None:
    """Contract 84."""
    with pytest.raises(ProviderError):
        Scoped(scope, factory)


# ---------------------------------------------------------------------- a request


async def test_a_request_makes_its_own_and_closes_it_before_what_it_was_made_of() -> None:
    """Contract 84."""
    async with Gate([work], container=app()) as gate:
        assert LOG == ["+db"], "global ones are made as the gate opens"
        assert await gate.invoke(work, user=USER) == "real"
        assert LOG == ["+db", "+tx", "-tx"]
        await asyncio.gather(*(gate.invoke(work, user=USER) for _ in range(3)))
        assert LOG.count("+tx") == LOG.count("-tx") == 4
    assert LOG[-1] == "-db"


async def test_dependency_injectors_own_providers_take_the_requests_instances() -> None:
    """Contract 84, 85: Factory, Callable and Configuration mix with Scoped."""

    @tool(effect="read")
    async def mixed(*, tx: Annotated[Any, Provide[App.tx]], service: Annotated[Any, Provide[App.service]]) -> bool:
        (table, own), scale = service
        return own is tx and (table, scale) == ("orders", 2)

    async with Gate([mixed], container=app()) as gate:
        assert await gate.invoke(mixed, user=USER) is True
    assert LOG == ["+db", "+tx", "-tx", "-db"]


def test_a_scoped_provider_that_is_called_outside_says_what_to_do() -> None:
    """Contract 84."""
    with pytest.raises(ProviderError, match=r"ctx\.resolve"):
        app().tx()


async def test_the_error_of_a_call_is_raised_at_the_yield_of_its_request() -> None:
    """Contract 84, C1c: so that a transaction rolls back."""
    async with Gate([work], container=app()) as gate:
        with pytest.raises(ToolFailed):
            await gate.invoke(work, {"n": -1}, user=USER)
    assert LOG == ["+db", "+tx", "rollback ValueError", "-tx", "-db"]


@pytest.mark.parametrize("swallow", [False, True])
@pytest.mark.parametrize("kind", ["generator", "manager", "async generator", "async manager"])
async def test_what_a_closing_does_with_the_error_changes_no_outcome(kind: str, swallow: bool) -> None:
    """Contract C1c."""

    def plainly() -> Generator[str]:
        try:
            yield "it"
        except ValueError as error:
            LOG.append(error.args)
            if not swallow:
                raise

    async def later() -> AsyncGenerator[str]:
        try:
            yield "it"
        except ValueError as error:
            LOG.append(error.args)
            if not swallow:
                raise

    factory: Any = {
        "generator": plainly,
        "manager": contextmanager(plainly),
        "async generator": later,
        "async manager": asynccontextmanager(later),
    }[kind]

    @tool(effect="read")
    async def fail(*, it: Annotated[str, Provide["it"]]) -> str:
        raise ValueError(it)

    suppressed: list[Any] = []

    class Last(Hook):
        def will_bind_providers(self, ctx: InvokeContext) -> None:
            suppressed.append(ctx)

    async with Gate([fail], [Last()], provide={"it": Scoped("request", factory)}) as gate:
        result = await gate.call(ToolCall(id="c", name="fail"), user=USER)
    assert result.outcome is Outcome.ERROR
    assert LOG == [("it",)]
    assert suppressed[0].suppressed == ()


@pytest.mark.parametrize("problem", ["raises", "yields again", "hangs"])
@on_virtual_time
async def test_a_teardown_that_fails_is_recorded_and_the_others_are_closed(loop: StepLoop, problem: str) -> None:
    """Contract C1c, C1d: it changes no outcome, and has a time limit."""

    async def bad() -> AsyncIterator[str]:
        yield "bad"
        LOG.append("bad closes")
        if problem == "raises":
            raise ValueError
        if problem == "yields again":
            yield "again"
        await asyncio.sleep(10_000)

    async def good() -> AsyncIterator[str]:
        yield "good"
        LOG.append("good closed")

    @tool(effect="read")
    async def take(*, good: Annotated[str, Provide["good"]], bad: Annotated[str, Provide["bad"]]) -> str:
        return good + bad

    seen: list[Any] = []

    class Last(Hook):
        def will_bind_providers(self, ctx: InvokeContext) -> None:
            seen.append(ctx)

    given = {"good": Scoped("request", good), "bad": Scoped("request", bad)}
    async with Gate([take], [Last()], provide=given) as gate:
        began = loop.time()
        assert (await gate.call(ToolCall(id="c", name="take"), user=USER)).output == "goodbad"
        assert loop.time() - began < 20
    assert LOG == ["bad closes", "good closed"]
    [only] = seen[0].suppressed
    expected = {"raises": ValueError, "yields again": ProviderError, "hangs": TimeoutError}[problem]
    assert isinstance(only.error, expected)


@on_virtual_time
async def test_a_slow_teardown_is_not_cut_short_by_a_cancellation(loop: StepLoop) -> None:
    """Contract C1d, I1b."""

    async def slow() -> AsyncIterator[str]:
        try:
            yield "it"
        finally:
            await asyncio.sleep(4)
            LOG.append("closed")

    async with Gate([taking("it")], provide={"it": Scoped("request", slow)}) as gate:
        call = asyncio.ensure_future(gate.invoke("take", user=USER))
        await asyncio.sleep(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert LOG == ["closed"]


@on_virtual_time
async def test_a_body_that_is_left_behind_keeps_its_request_until_it_ends(loop: StepLoop) -> None:
    """Contract 84, I12."""

    @tool(effect="read", hard_deadline=True, deadline=1.0)
    async def stubborn(*, tx: Annotated[Any, Provide[App.tx]], ctx: ToolContext) -> str:
        until = loop.time() + 8
        while loop.time() < until:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                LOG.append("not now")
        held: Any = ctx
        assert await held.resolve(App.tx) is tx
        LOG.append("body ends")
        return ""

    async with Gate([stubborn], container=app()) as gate:
        result = await gate.call(ToolCall(id="c", name="stubborn"), user=USER)
        assert result.outcome is Outcome.UNKNOWN
        assert "-tx" not in LOG
        await asyncio.sleep(20)
        assert LOG[-3:] == ["body ends", LOG[-2], "-tx"]


async def test_nested_calls_share_the_request_and_do_not_end_it() -> None:
    """Contract 84."""

    @tool(effect="read")
    async def outer(*, tx: Annotated[Any, Provide[App.tx]], ctx: ToolContext) -> str:
        held: Any = ctx
        await asyncio.gather(*(held.call("work", {"n": n}) for n in range(3)))
        with pytest.raises(ToolFailed):
            await held.call("work", {"n": -1})
        assert "-tx" not in LOG
        assert await held.resolve(App.tx) is tx
        return ""

    @tool(effect="read")
    async def late(ctx: ToolContext) -> str:
        held: Any = ctx
        await held.call("work", {})
        assert "-tx" not in LOG, "made by the inner call, and closed by the outer"
        return ""

    for name in ("outer", "late"):
        LOG.clear()
        async with Gate([work, outer, late], container=app()) as gate:
            await gate.invoke(name, user=USER)
        assert LOG == ["+db", "+tx", "-tx", "-db"]


@pytest.mark.parametrize("arguments", [{}, {"n": "x"}])
async def test_a_call_that_is_denied_or_invalid_makes_nothing(arguments: dict[str, Any]) -> None:
    """Contract 55, I7."""

    class No(Hook):
        def will_authorize_input(self, ctx: InvokeContext) -> None:
            raise Denied("no")

    async with Gate([work], [No()], container=app()) as gate:
        for session in (None, "s"):
            result = await gate.call(ToolCall(id="c", name="work", arguments=arguments), user=USER, session_id=session)
            assert result.outcome in (Outcome.DENIED, Outcome.INVALID)
    assert LOG == ["+db", "-db"]


# ---------------------------------------------------------------------- too often, too late, too many


async def test_making_that_asks_for_itself_is_refused() -> None:
    """Contract 84."""
    registry = ProviderRegistry()
    holder: list[Any] = []

    async def again() -> Any:
        return await holder[0].provide(registry.recipes.of("via"))

    def via() -> Any:
        return holder[0].take(registry.recipes.of("plain"))

    def plain() -> Any:
        return holder[0].take(registry.recipes.of("plain"))

    async def round_about() -> Any:
        return await holder[0].provide(registry.recipes.of("round"))

    registry.provide(
        {
            "again": Scoped("request", again),
            "via": Scoped("request", via),
            "plain": Scoped("request", plain),
            "round": Scoped("request", round_about),
        }
    )
    async with registry.request() as scope:
        holder.append(scope)
        for token in ("plain", "round", "again"):
            for _ in range(2):
                with pytest.raises(ProviderError, match="itself"):
                    await scope.provide(registry.recipes.of(token))
        assert not scope._making


async def test_nothing_is_given_after_the_end_of_a_request() -> None:
    """Contract 84, C26: neither what was made, nor anything new, nor the session."""
    held: list[Any] = []

    @tool(effect="read")
    async def leak(*, tx: Annotated[Any, Provide[App.tx]], ctx: ToolContext) -> str:
        held.append(ctx)
        return ""

    async with Gate([leak], container=app(), provide={"s": Scoped("session", open_db)}) as gate:
        for session in (None, "s"):
            await gate.invoke(leak, user=USER, session_id=session)
        for ctx in held:
            for token in (App.tx, App.repo, "s"):
                with pytest.raises(ProviderError, match=r"ha[ds] ended"):
                    await ctx.resolve(token)
                with pytest.raises(ProviderError):
                    ctx.get(token)
            with pytest.raises(ProviderError, match=r"ha[ds] ended"):
                assert ctx.session
            assert (await ctx.resolve(App.db)).name == "real", "what is wider is there"
        assert not len(gate.providers.sessions)


@pytest.mark.parametrize("generator", [False, True])
@on_virtual_time
async def test_what_is_still_being_made_at_the_end_is_closed_and_not_given(loop: StepLoop, generator: bool) -> None:
    """Contract 84."""

    async def slow() -> str:
        await asyncio.sleep(5)
        return "it"

    async def slowly() -> AsyncIterator[str]:
        await asyncio.sleep(5)
        yield "it"
        LOG.append("closed")

    registry = ProviderRegistry()
    registry.provide({"it": Scoped("request", slowly if generator else slow)})
    async with registry.request() as scope:
        late = asyncio.ensure_future(scope.provide(registry.recipes.of("it")))
        await asyncio.sleep(1)
    with pytest.raises(ProviderError, match="ended while 'it' was created"):
        await late
    assert len(LOG) == generator
    assert not scope.instances


async def test_a_row_of_askers_outlasts_a_row_of_failures() -> None:
    """Contract 84: each failure is one asker's, and the next one tries."""
    tries: list[int] = []

    async def failing() -> str:
        tries.append(1)
        await asyncio.sleep(0)
        if len(tries) < 600:
            raise ValueError
        return "it"

    registry = ProviderRegistry()
    registry.provide({"it": Scoped("request", failing)})
    async with registry.request() as scope:
        asked = [scope.provide(registry.recipes.of("it")) for _ in range(700)]
        found = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in found].count(ValueError) == 599
    assert found.count("it") == 101


async def test_a_request_scope_closes_everything_though_one_closing_raises() -> None:
    """Contract C1c."""

    async def bad() -> AsyncIterator[str]:
        yield "bad"
        raise KeyError

    registry = ProviderRegistry()
    registry.provide({"db": Scoped("request", open_db), "bad": Scoped("request", bad)})
    with pytest.raises(KeyError):
        async with registry.request() as scope:
            await scope.provide(registry.recipes.of("db"))
            await scope.provide(registry.recipes.of("bad"))
    assert LOG == ["+db", "-db"]


# ---------------------------------------------------------------------- instead of the real one


@tool(effect="read")
async def fetch(*, db: Annotated[Db, Provide[App.db]], tx: Annotated[Any, Provide[App.tx]]) -> str:
    return f"{db.name} {tx[0]} {tx[1].name}"


@pytest.mark.parametrize("session", [None, "s"])
async def test_gate_override_replaces_in_every_scope_and_is_undone(session: str | None) -> None:
    """Contract 85."""

    async def fake_tx() -> AsyncIterator[tuple[str, Db]]:
        LOG.append("+fake")
        yield ("fake tx", Db("of the fake"))
        LOG.append("-fake")

    async def fetched() -> str:
        result: str = await gate.invoke(fetch, user=USER, session_id=session)
        return result

    async with Gate([fetch], container=app()) as gate:
        assert await fetched() == "real tx real"
        with gate.override({App.db: Db("fake")}):
            assert await fetched() == "fake tx fake"
            with gate.override({App.tx: fake_tx}):
                assert await fetched() == "fake fake tx of the fake"
            assert await fetched() == "fake tx fake"
        assert await fetched() == "real tx real"
        with pytest.raises(KeyError), gate.override({App.db: Db("fake")}):
            raise KeyError
        assert await fetched() == "real tx real"
        with pytest.raises(ProviderError, match="no provider"), gate.override({"no such": 1}):
            pass
    assert LOG.count("+fake") == LOG.count("-fake") == 1


async def test_an_instance_of_a_session_can_be_replaced_and_is_not_made_then() -> None:
    """Contract 85, C26."""

    async def basket() -> AsyncIterator[str]:
        LOG.append("made")
        yield "real"

    async with Gate([taking("basket")], provide={"basket": Scoped("session", basket)}) as gate:
        with gate.override({"basket": "fake"}):
            assert await gate.invoke("take", user=USER, session_id="s") == "fake"
        assert not LOG
        assert await gate.invoke("take", user=USER, session_id="s") == "real"


async def test_a_containers_override_is_honoured_in_every_scope_and_undone() -> None:
    """Contract 85."""
    container = app()

    async def fake_tx(db: Db) -> AsyncIterator[tuple[str, Db]]:
        LOG.append("+fake")
        yield ("fake tx", db)
        LOG.append("-fake")

    async with Gate([fetch, taking(App.service)], container=container) as gate:
        assert await gate.invoke(fetch, user=USER) == "real tx real"
        with container.db.override(Db("fake")):
            assert await gate.invoke(fetch, user=USER) == "fake tx fake"
            with container.tx.override(Scoped("request", fake_tx, container.db)):
                assert await gate.invoke(fetch, user=USER) == "fake fake tx fake"
                assert "fake tx" in await gate.invoke("take", user=USER)
            with container.tx.override(providers.Object(("object", Db("x")))):
                assert await gate.invoke(fetch, user=USER) == "fake object x"
        assert await gate.invoke(fetch, user=USER) == "real tx real"
    assert LOG.count("+fake") == LOG.count("-fake") == 2


async def test_ctx_get_takes_a_plain_fake_where_the_real_one_is_made_asynchronously() -> None:
    """Contract 85."""

    @tool(effect="read")
    def look(ctx: ToolContext) -> str:
        held: Any = ctx
        return str(held.get("it"))

    async def real() -> str:
        return "real"

    async with Gate([look], provide={"it": Scoped("request", real)}) as gate:
        result = await gate.call(ToolCall(id="c", name="look"), user=USER)
        assert result.outcome is Outcome.ERROR
        with gate.override({"it": lambda: "fake"}):
            assert await gate.invoke("look", user=USER) == "fake"


async def test_plain_tools_in_threads_get_what_their_request_has() -> None:
    """Contract 84, 85."""

    def begin() -> Iterator[object]:
        it = object()
        yield it
        asyncio.get_running_loop()
        LOG.append("closed on the loop")

    @tool(effect="read")
    def look(*, it: Annotated[object, Provide["it"]], ctx: ToolContext) -> bool:
        held: Any = ctx
        return held.get("it") is it

    @tool(effect="read")
    def lazily(ctx: ToolContext) -> bool:
        held: Any = ctx
        return held.get("it") is held.get("it")

    async with Gate([look, lazily], provide={"it": Scoped("request", begin)}) as gate:
        assert await gate.invoke(look, user=USER) is True
        assert await gate.invoke(lazily, user=USER) is True
    assert LOG == ["closed on the loop"] * 2


async def test_what_is_asked_for_after_the_end_of_a_call_that_used_no_provider_is_refused() -> None:
    """Contract 84: it would be made in a scope without an end."""
    left: list[Any] = []

    @tool(effect="read")
    async def leak(*, ctx: ToolContext) -> str:
        """Keep the context."""
        left.append(ctx)
        return ""

    LOG.clear()
    async with Gate([leak], container=app()) as gate:
        await gate.invoke("leak", {}, user=USER)
        with pytest.raises(ProviderError, match="ended"):
            await left[0].resolve(App.tx)
        assert "tx" not in str(LOG)
