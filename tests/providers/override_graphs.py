"""Random graphs of providers of every kind and scope, and random blocks of overrides: what is drawn, built, driven and judged."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Annotated, Any

from dependency_injector import containers, providers
from hypothesis import strategies as st

from callgate import Gate, Hook, InvokeContext, Provide, Scoped, ToolContext, tool
from callgate.providers.ranks import Rank

CODE = ["class", "plain", "async", "generator", "async generator"]
TOKENS = ["global", "Scoped global", "session", "request"]
IN_CONTAINER = ["Singleton", "Factory", "Scoped global of the container"]
LASTING = ("global", "Scoped global", "Singleton", "Factory", "Scoped global of the container")


@dataclass(frozen=True)
class Node:
    """One provider: where it stands, what it is made by, whether that waits, and the nodes that it needs."""

    home: str
    code: str
    waits: bool
    needs: tuple[int, ...]

    @property
    def rank(self) -> Rank:
        """The scope that keeps the instance."""
        return Rank[self.home.upper()] if self.home in ("session", "request") else Rank.GLOBAL


@dataclass(frozen=True)
class Block:
    """One block: the nodes that it overrides, each by a value or by code that needs nodes; and how it is written."""

    fakes: tuple[tuple[int, str, tuple[int, ...]], ...]
    is_async: bool


@dataclass(frozen=True)
class Plot:
    """A graph, the blocks, and the order in which they begin and end."""

    nodes: tuple[Node, ...]
    blocks: tuple[Block, ...]
    order: tuple[int, ...]
    """The number of a block begins it, and then ends it."""


@st.composite
def plots(draw: Any) -> Plot:
    """Draw a graph in which no instance needs one that lasts shorter, and blocks that overlap."""
    nodes: list[Node] = []
    for _ in range(draw(st.integers(2, 6))):
        home = draw(st.sampled_from([*TOKENS, *IN_CONTAINER]))
        rank = Rank[home.upper()] if home in ("session", "request") else Rank.GLOBAL
        fit = [n for n, one in enumerate(nodes) if one.rank >= rank and (home in TOKENS or one.home in IN_CONTAINER)]
        needs = draw(st.lists(st.sampled_from(fit), max_size=3, unique=True)) if fit else []
        kinds = ["class"] if home in ("Singleton", "Factory") else CODE if home == "global" else [*CODE, "object"]
        code = draw(st.sampled_from(kinds))
        nodes.append(Node(home, code, draw(st.booleans()), tuple(sorted(needs))))
    blocks = [
        Block(
            tuple(
                (
                    n,
                    code,
                    tuple(sorted(draw(st.sets(st.sampled_from(fit), max_size=2)))) if fit and code != "value" else (),
                )
                for n in draw(st.lists(st.integers(0, len(nodes) - 1), min_size=1, max_size=2, unique=True))
                for code in [draw(st.sampled_from(["value", *CODE]))]
                for fit in [[need for need in range(n) if nodes[need].rank >= nodes[n].rank]]
            ),
            draw(st.booleans()),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    order = draw(st.permutations([n for n in range(len(blocks)) for _ in "ab"]))
    return Plot(tuple(nodes), tuple(blocks), tuple(order))


@dataclass
class Tale:
    """The instances that were made and closed, and what was wrong.

    ``ordered``: each block waits for what it closes. A plain ``with`` closes what is asynchronous in the background, and
    what that was built from may be closed by another block meanwhile.
    """

    ordered: bool = True
    open: list[Any] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Made:
    """An instance, described by its name and those of what it was built from."""

    def __init__(self, name: str, *needs: Made) -> None:
        self.name, self.needs, self.closed = name, needs, 0

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.needs))})" if self.needs else self.name


def factory_of(tale: Tale, name: str, code: str, waits: bool, needs: tuple[int, ...]) -> Any:
    """Return code that makes an instance from marked parameters."""

    def make(*given: Made, **named: Made) -> Made:
        made = Made(name, *given, *(named[key] for key in sorted(named)))
        tale.wrong += [f"{made} was made of {one}, which is closed" for one in made.needs if one.closed]
        return made

    def close(made: Made, *, in_order: bool = True) -> None:
        made.closed += 1
        tale.open.remove(made)
        if in_order:
            tale.wrong += [f"{made} was closed after its {one}" for one in made.needs if one.closed]

    async def later(*given: Made, **named: Made) -> Made:
        if waits:
            await asyncio.sleep(0)
        return make(*given, **named)

    def opened(*given: Made, **named: Made) -> Any:
        made = make(*given, **named)
        tale.open.append(made)
        yield made
        close(made)

    async def opened_later(*given: Made, **named: Made) -> Any:
        made = await later(*given, **named)
        tale.open.append(made)
        yield made
        if waits:
            await asyncio.sleep(0)
        close(made, in_order=tale.ordered)

    class Instance(Made):
        def __init__(self, *given: Made, **named: Made) -> None:
            super().__init__(name, *given, *(named[key] for key in sorted(named)))

    class Called:
        async def __call__(self, *given: Made, **named: Made) -> Made:
            return await later(*given, **named)

    function: Any = {
        "plain": make,
        "async": later,
        "generator": opened,
        "async generator": opened_later,
        "class": Instance,
    }
    function = function.get(code, Called.__call__)
    marked = {f"p{need}": Annotated[Made, Provide[f"n{need}"]] for need in needs}
    parameters = [
        *([inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)] if code == "object" else []),
        inspect.Parameter("given", inspect.Parameter.VAR_POSITIONAL),
        *(inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=hint) for key, hint in marked.items()),
        inspect.Parameter("named", inspect.Parameter.VAR_KEYWORD),
    ]
    function.__signature__ = inspect.Signature(parameters)
    (function.__init__ if code == "class" else function).__annotations__ = marked
    return Called() if code == "object" else function


def gate_of(tale: Tale, plot: Plot, seen: dict[str, dict[int, str]]) -> Gate:
    """Return a gate whose plain hook and whose tool write down what they find."""
    container: Any = containers.DynamicContainer()
    provided: dict[Any, Any] = {}
    for number, node in enumerate(plot.nodes):
        name, needs = f"n{number}", node.needs if node.home in TOKENS else ()
        make = factory_of(tale, name, node.code, node.waits, needs)
        arguments = [] if node.home in TOKENS else [getattr(container, f"n{need}") for need in node.needs]
        if node.home == "global":
            provided[name] = make
        elif node.home in TOKENS:
            scope: Any = str(node.rank)
            provided[name] = Scoped(scope, make)
        elif node.home in ("Singleton", "Factory"):
            setattr(container, name, getattr(providers, node.home)(make, *arguments))
        else:
            setattr(container, name, Scoped("global", make, *arguments))

    class Looks(Hook):
        def will_create_invoke_context(self, ctx: InvokeContext) -> None:
            seen["hook"] = {n: str(ctx.get(f"n{n}")) for n, node in enumerate(plot.nodes) if node.home in LASTING}

    @tool(effect="read")
    async def looks(ctx: ToolContext, marked: Annotated[Any, Provide["n0"]]) -> None:
        """Look at everything."""
        view: Any = ctx
        seen["tool"] = {n: str(await view.resolve(f"n{n}")) for n in range(len(plot.nodes))}
        seen["parameter"] = {0: str(marked)}

    return Gate([looks], [Looks()], container=container, provide=provided)


async def play(tale: Tale, plot: Plot) -> None:
    """Begin and end the blocks in their order; between any two steps, compare what a call finds with what it should."""
    seen: dict[str, dict[int, str]] = {}
    gate = gate_of(tale, plot, seen)

    def expected(number: int, open_now: list[int]) -> str:
        for block in reversed(open_now):
            for n, _, needed in plot.blocks[block].fakes:
                if n == number:
                    return told(f"fake {block} of {n}", needed, open_now)
        return told(f"n{number}", plot.nodes[number].needs, open_now)

    def told(name: str, needs: tuple[int, ...], open_now: list[int]) -> str:
        return f"{name}({', '.join(expected(need, open_now) for need in needs)})" if needs else name

    async def look(open_now: list[int]) -> None:
        for session in ("s", None):
            seen.clear()
            result = await gate.call("looks", {}, session_id=session)
            if not result.ok or {*seen} != {"hook", "tool", "parameter"}:
                tale.wrong.append(f"a call failed in {open_now}: {result.error!r}")
            tale.wrong += [
                f"the {who} found {what} in {open_now}, not {expected(n, open_now)}"
                for who, found in seen.items()
                for n, what in found.items()
                if what != expected(n, open_now)
            ]

    async with gate:
        await look([])
        real = list(tale.open)
        opened: dict[int, tuple[AsyncExitStack, bool]] = {}
        for number in plot.order:
            block = plot.blocks[number]
            if number in opened:
                stack, _ = opened.pop(number)
                await stack.aclose()
            else:
                fakes = {
                    f"n{n}": Made(f"fake {number} of {n}")
                    if code == "value"
                    else factory_of(tale, f"fake {number} of {n}", code, True, needs)
                    for n, code, needs in block.fakes
                }
                stack = AsyncExitStack()
                if block.is_async:
                    await stack.enter_async_context(gate.override(fakes))
                else:
                    stack.enter_context(gate.override(fakes))
                opened[number] = stack, block.is_async
            await look(list(opened))
        for _ in range(20):
            await asyncio.sleep(0)
        tale.wrong += [f"{one} is left open by its block" for one in tale.open if one not in real]
        tale.wrong += [f"the real {one} was closed" for one in real if one.closed]
    tale.wrong += [f"{one} is left open by the gate" for one in tale.open]


def judge(plot: Plot) -> list[str]:
    """Return what is wrong in a run; nothing if every promise is kept."""
    tale, noise = Tale(ordered=all(block.is_async for block in plot.blocks)), list[Any]()

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(context["message"]))
        await play(tale, plot)

    asyncio.run(run())
    return [*tale.wrong, *noise]
