"""Random graphs of scoped providers, and requests that ask for them all at once: what is drawn, built, driven and judged."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from dependency_injector import containers
from hypothesis import strategies as st

from callgate import Provide
from callgate.errors import ProviderError
from callgate.providers.ranks import Rank
from callgate.providers.registry import ProviderRegistry
from callgate.providers.scope import ProviderScope
from callgate.providers.scoped import Scoped
from callgate.runtime.lifespan.factories import Factories
from callgate.runtime.testing.virtual_time import StepLoop, close_loop

SYNC = ("plain", "class", "generator", "manager")
ASYNC = ("async", "async generator", "async manager")
GENERATORS = ("generator", "manager", "async generator", "async manager")
SESSIONS = (None, "one", "two")


class Boom(Exception):
    """The error of failing factories, closings and requests."""


@dataclass(frozen=True)
class Node:
    """One provider: *needs* are ``(node, way)``; it fails *fails* times before it can be made."""

    rank: Rank
    kind: str
    in_container: bool
    needs: tuple[tuple[int, str], ...]
    fails: int
    waits: tuple[float, ...]
    closing: str  # "", "waits", "raises"


@dataclass(frozen=True)
class Ask:
    """One asker: when it begins, for what, when it is cancelled if ever, and whether it can wait."""

    at: float
    node: int
    cancelled_after: float | None
    plainly: bool


@dataclass(frozen=True)
class Request:
    """One request: its session, its askers, and whether it fails in the end."""

    session: str | None
    asks: tuple[Ask, ...]
    fails: bool


@dataclass(frozen=True)
class Plot:
    """A whole run."""

    nodes: tuple[Node, ...]
    requests: tuple[Request, ...]
    ends_session_at: float | None


TIMES = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.0])


@st.composite
def plots(draw: Any) -> Plot:
    """Graphs without cycles, in which no instance depends on one with a shorter lifetime; other graphs are refused and tested apart."""
    nodes: list[Node] = []
    for index in range(draw(st.integers(1, 7))):
        rank = draw(st.sampled_from([Rank.REQUEST, Rank.REQUEST, Rank.SESSION, Rank.GLOBAL]))
        in_container = draw(st.booleans())
        wider = [other for other in range(index) if nodes[other].rank >= rank]
        taken = draw(st.lists(st.sampled_from(wider), max_size=3, unique=True)) if wider else []
        ways = [
            draw(st.sampled_from(["positional", "keyword", "marked"] if nodes[other].in_container else ["marked"]))
            for other in taken
        ]
        nodes.append(
            Node(
                rank,
                draw(st.sampled_from([*SYNC, *ASYNC, *ASYNC])),
                in_container,
                tuple(zip(taken, ways, strict=True)),
                0 if rank is Rank.GLOBAL else draw(st.sampled_from([0, 0, 0, 1, 2])),
                tuple(draw(st.lists(TIMES, max_size=2))),
                draw(st.sampled_from(["", "", "waits", "raises"])),
            )
        )
    ask = st.builds(
        Ask, TIMES, st.integers(0, len(nodes) - 1), st.none() | st.sampled_from([0.0, 0.7, 1.2, 2.5]), st.booleans()
    )
    request = st.builds(
        Request, st.sampled_from(SESSIONS), st.lists(ask, min_size=1, max_size=6).map(tuple), st.booleans()
    )
    requests = draw(st.lists(request, min_size=1, max_size=4).map(tuple))
    return Plot(tuple(nodes), requests, draw(st.none() | TIMES))


# ---------------------------------------------------------------------- what is made


@dataclass(eq=False)
class Made:
    """An instance; ``number`` is its place in the order of making."""

    node: int
    needs: list[Made]
    number: int
    closed: int = 0
    saw: BaseException | None = None


@dataclass
class Tale:
    """The events of a run; ``wrong`` holds the unexpected ones."""

    plot: Plot
    made: list[Made] = field(default_factory=list)
    closed: list[Made] = field(default_factory=list)
    attempts: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def begin(self, index: int) -> None:
        self.attempts[index] += 1
        if self.attempts[index] <= self.plot.nodes[index].fails:
            raise Boom

    def make(self, index: int, needs: list[Made]) -> Made:
        self.wrong += [f"{index} was made of a closed {need.node}" for need in needs if need.closed]
        if sorted(need.node for need in needs) != sorted(other for other, _ in self.plot.nodes[index].needs):
            self.wrong.append(f"{index} was given {[need.node for need in needs]}")
        made = Made(index, needs, len(self.made))
        self.made.append(made)
        return made

    def close(self, made: Made) -> None:
        made.closed += 1
        self.closed.append(made)
        self.wrong += [f"{made.node} was closed after its {need.node}" for need in made.needs if need.closed]
        if self.plot.nodes[made.node].closing == "raises":
            raise Boom


def factory_of(tale: Tale, index: int) -> Callable[..., Any]:
    """A factory of the kind that a node says, with its marked parameters in the signature."""
    node = tale.plot.nodes[index]

    async def wait() -> None:
        for seconds in node.waits:
            await asyncio.sleep(seconds)

    async def made_later(*given: Made, **named: Made) -> Made:
        await wait()
        tale.begin(index)
        await wait()
        return tale.make(index, [*given, *named.values()])

    def made_now(*given: Made, **named: Made) -> Made:
        tale.begin(index)
        return tale.make(index, [*given, *named.values()])

    async def opened_later(*given: Made, **named: Made) -> Any:
        made = await made_later(*given, **named)
        try:
            yield made
        except BaseException as error:
            made.saw = error
            raise
        finally:
            if node.closing == "waits":
                await asyncio.sleep(1.0)
            tale.close(made)

    def opened_now(*given: Made, **named: Made) -> Any:
        made = made_now(*given, **named)
        try:
            yield made
        except BaseException as error:
            made.saw = error
            raise
        finally:
            tale.close(made)

    class Instance(Made):
        def __init__(self, *given: Made, **named: Made) -> None:
            made = made_now(*given, **named)
            super().__init__(made.node, made.needs, made.number)
            tale.made[made.number] = self

    function: Any = {
        "plain": made_now,
        "class": Instance,
        "async": made_later,
        "generator": opened_now,
        "manager": opened_now,
        "async generator": opened_later,
        "async manager": opened_later,
    }[node.kind]
    marked = {f"p{other}": Annotated[Made, Provide[f"n{other}"]] for other, way in node.needs if way == "marked"}
    keyword = inspect.Parameter.KEYWORD_ONLY
    function.__signature__ = inspect.Signature(
        [
            inspect.Parameter("given", inspect.Parameter.VAR_POSITIONAL),
            *(inspect.Parameter(name, keyword, annotation=hint) for name, hint in marked.items()),
            inspect.Parameter("named", inspect.Parameter.VAR_KEYWORD),
        ]
    )
    (function.__init__ if node.kind == "class" else function).__annotations__ = marked
    if node.kind == "manager":
        return contextlib.contextmanager(function)
    return contextlib.asynccontextmanager(function) if node.kind == "async manager" else function


def registry_of(tale: Tale) -> ProviderRegistry:
    """The graph, partly in a container, partly given by token."""
    container: Any = containers.DynamicContainer()
    provided: dict[str, Any] = {}
    for index, node in enumerate(tale.plot.nodes):
        at = {way: [other for other, its in node.needs if its == way] for way in ("positional", "keyword")}
        make: Any = Scoped
        scoped = make(
            str(node.rank),
            factory_of(tale, index),
            *(getattr(container, f"n{other}") for other in at["positional"]),
            **{f"k{other}": getattr(container, f"n{other}") for other in at["keyword"]},
        )
        if node.in_container:
            setattr(container, f"n{index}", scoped)
        else:
            provided[f"n{index}"] = scoped
    registry = ProviderRegistry(container)
    registry.provide(provided)
    return registry


# ---------------------------------------------------------------------- the run


async def ask(tale: Tale, registry: ProviderRegistry, scope: ProviderScope, one: Ask) -> None:
    """One asker: what it gets is open, and stays so while the request lasts."""
    await asyncio.sleep(one.at)
    recipe = registry.recipes.of(f"n{one.node}")
    for _ in range(1 + sum(node.fails for node in tale.plot.nodes)):
        try:
            made = scope.take(recipe) if one.plainly else await scope.provide(recipe)
        except Boom:
            continue
        except ProviderError:
            if one.plainly and (recipe.is_async or recipe in scope.home(recipe.rank)._making):
                return
            raise
        tale.wrong += [f"{made.node} was given though it is closed"] if made.closed else []
        again = await scope.provide(recipe)
        tale.wrong += [f"{made.node} was made twice for one request"] if again is not made else []
        return
    tale.wrong.append(f"{one.node} failed more often than its factories did")


async def serve(tale: Tale, registry: ProviderRegistry, one: Request, scopes: dict[int, ProviderScope]) -> None:
    """One request: askers at once, some cancelled; then it ends, closing what it made."""
    scope = registry.request(one.session)
    scopes[id(scope)] = scope
    loop = asyncio.get_running_loop()
    askers = [asyncio.ensure_future(ask(tale, registry, scope, each)) for each in one.asks]
    for each, asker in zip(one.asks, askers, strict=True):
        if each.cancelled_after is not None:
            loop.call_later(each.at + each.cancelled_after, asker.cancel)
    for outcome in await asyncio.gather(*askers, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            tale.wrong.append(f"an asker failed: {outcome!r}")
    held = {rank: scope.home(rank) for rank in (Rank.SESSION, Rank.REQUEST) if rank is Rank.REQUEST or scope._session}
    kept = [made for home in held.values() for made in home.instances.values()]
    for home in held.values():
        if len({made.node for made in home.instances.values()}) != len(home.instances):
            tale.wrong.append("two of one kind in a scope")
    tale.wrong += [f"{made.node} was closed too early" for made in kept if made.closed]
    exits = scope.leave()
    error = Boom() if one.fails else None
    tale.wrong += [f"{made.node} is given after the end" for made in scope.instances.values()]
    for left in exits:
        with contextlib.suppress(Boom):
            await left.leave(error if left.recipe.rank is Rank.REQUEST else None)
    for made in held[Rank.REQUEST].exits:
        tale.wrong.append(f"{made} is left")
    for made in kept:
        node = tale.plot.nodes[made.node]
        if node.rank is Rank.REQUEST and node.kind in GENERATORS and made.saw is not error:
            tale.wrong.append(f"{made.node} saw {made.saw!r}, not {error!r}")


async def play(tale: Tale) -> None:
    """The whole run."""
    registry = registry_of(tale)
    on_end: list[Any] = []
    registry.sessions.on_end = lambda *over: on_end.append(over)
    factories = Factories(registry)
    await factories.open()
    begun: dict[int, ProviderScope] = {}
    if tale.plot.ends_session_at is not None:
        asyncio.get_running_loop().call_later(
            tale.plot.ends_session_at, lambda: on_end.append(("one", "asked", registry.end_session("one")))
        )
    await asyncio.gather(*(serve(tale, registry, one, begun) for one in tale.plot.requests))
    await asyncio.sleep(10)
    registry.sessions.end_all()
    for _, _, exits in on_end:
        for left in exits:
            with contextlib.suppress(Boom):
                await left.leave()
    if registry.world.scope._making or any(scope._making for scope in begun.values()):
        tale.wrong.append("something is being made for ever")
    with contextlib.suppress(Boom):
        await factories.close()


def judge(plot: Plot) -> list[str]:
    """Return the errors of a run; empty if the library keeps its promises."""
    tale = Tale(plot)
    loop = StepLoop()
    try:
        loop.run_until_complete(play(tale))
        tale.wrong += loop.faults
    finally:
        close_loop(loop)
    for made in tale.made:
        wanted = 1 if plot.nodes[made.node].kind in GENERATORS else 0
        if made.closed != wanted:
            tale.wrong.append(f"{made.node} was closed {made.closed} times")
        if plot.nodes[made.node].rank is not Rank.REQUEST and isinstance(made.saw, Boom):
            tale.wrong.append(f"{made.node} outlives requests and saw the error of one")
    ranks = {rank: len([one for one in tale.made if plot.nodes[one.node].rank is rank]) for rank in Rank}
    sessions = len({one.session for one in plot.requests} - {None}) + sum(not one.session for one in plot.requests)
    rounds = sessions + len(plot.requests) * (plot.ends_session_at is not None)
    for node_rank, most in ((Rank.REQUEST, len(plot.requests)), (Rank.SESSION, rounds), (Rank.GLOBAL, 1)):
        nodes = sum(node.rank is node_rank for node in plot.nodes)
        if ranks[node_rank] > most * nodes:
            tale.wrong.append(f"{ranks[node_rank]} {node_rank} instances of {nodes} providers")
    return tale.wrong
