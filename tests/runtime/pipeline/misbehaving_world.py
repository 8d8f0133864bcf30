"""What is seen while a program of misbehaving hooks and tools runs."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import Counter, defaultdict
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Self

from callgate import InvokeContext, Stage, User
from callgate.providers.stores.effects import EffectRecord
from callgate.runtime.testing.virtual_time import StepLoop
from callgate.tools.calls import ToolResult
from tests.runtime.pipeline.misbehaving import Program
from tests.runtime.pipeline.misbehaving_deeds import SECRET

CURRENT: ContextVar[str] = ContextVar("request of a program")
PLACE = threading.local()


@dataclass
class Ran:
    """One run of a body: what it got, and how it ended; ``error`` is None for an output."""

    tool: str
    run: Any
    got: Any
    ended: bool = False
    error: BaseException | None = None
    said: bool = False


@dataclass
class Seen:
    """What was seen of one run: a call of a caller, or a nested one."""

    request: str
    tool: str
    run: Any
    authorised: Any = None
    stages: list[tuple[str, Stage]] = field(default_factory=list)
    leases: list[tuple[str, str]] = field(default_factory=list)
    stopped: str | None = None
    closing_at: float | None = None


@dataclass
class Called:
    """One call of a caller, and what came of it."""

    request: str
    user: User
    began: float = 0.0
    ended: float | None = None
    result: ToolResult | None = None
    output: Any = None
    raised: BaseException | None = None
    cancelled: bool = False
    parts: list[Any] = field(default_factory=list)
    bodies: list[Ran] = field(default_factory=list)
    effect: EffectRecord | None = None


def base_of(ctx: Any) -> Any:
    """Return the run beneath the layers of a context."""
    run: Any = ctx.run if isinstance(ctx, InvokeContext) else ctx._ctx.run
    while "beneath" in getattr(run, "__dict__", {}):
        run = run.beneath
    return run


class Managed:
    """A lease that notes when it is taken and given back."""

    def __init__(self, world: World, seen: Seen | None, name: str) -> None:
        self.world, self.seen, self.name = world, seen, name

    async def __aenter__(self) -> Self:
        await asyncio.sleep(0)
        if self.seen is not None:
            self.seen.leases.append(("took", self.name))
        return self

    async def __aexit__(self, *error: object) -> None:
        if self.seen is not None:
            self.seen.leases.append(("gave", self.name))
        await asyncio.sleep(0)


class World:
    """One run of a program: its gate, and everything that was seen."""

    def __init__(self, program: Program, loop: StepLoop) -> None:
        self.program, self.loop = program, loop
        self.runs: dict[int, Seen] = {}
        self.bodies: list[Ran] = []
        self.calls: list[Called] = []
        self.refused: set[str] = set()
        self.broken: list[tuple[str, str]] = []
        self.sent: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.instances: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self.tasks: list[asyncio.Task[Any]] = []
        self.futures: list[Any] = []
        self.released = threading.Event()
        self.kept: list[Any] = []
        self.left: list[str] = []
        self._marks: Counter[str] = Counter()
        self._numbers: Counter[tuple[str, str]] = Counter()

    # ------------------------------------------------------------------ marks

    def broke(self, promise: str, how: str) -> None:
        """Note at once that a promise was broken."""
        self.broken.append((promise, how))

    def mark(self, who: str, stage: str) -> str:
        """Return a text that shows who wrote a value, where, and in which call."""
        name = f"{CURRENT.get()}:{who}:{stage}"
        self._marks[name] += 1
        return f"<{name}:{self._marks[name]}>"

    def forbidden_mark(self, who: str) -> str:
        """Return a mark that may show nowhere."""
        self.refused.add(mark := self.mark(who, "in place"))
        return mark

    def has_ended(self, ctx: Any) -> bool:
        """Return True if the call of a context has ended."""
        run = base_of(ctx)
        return run.finished is not None or (run.scope is not None and run.scope.closed)

    def seen(self, ctx: Any) -> Seen:
        """Return what was seen of the run of a context."""
        run = base_of(ctx)
        if id(run) not in self.runs:
            self.runs[id(run)] = Seen(CURRENT.get(), run.plan.tool_id, run)
        return self.runs[id(run)]

    # ------------------------------------------------------------------ what deeds need

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Start a task that may outlive its call; the end of the program waits for it."""
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.tasks.append(task)
        return task

    def lease_of(self, ctx: Any, who: str) -> Managed:
        """Return something to lease."""
        seen = self.seen(ctx)
        self._marks["lease"] += 1
        return Managed(self, seen, f"{who}#{self._marks['lease']}")

    async def send(self, ctx: Any, sender: str) -> None:
        """Send a numbered part that has to be redacted."""
        request = CURRENT.get()
        self._numbers[request, sender] += 1
        number = self._numbers[request, sender]
        await ctx.send({"sender": sender, "number": number, "text": f"{SECRET} of {request}"})
        if (ctx.run if isinstance(ctx, InvokeContext) else ctx._ctx.run).events is not None and any(
            one.request == request and one.ended is None for one in self.calls
        ):
            self.sent[request, sender].append(number)

    def look_at_bound(self, ctx: Any) -> None:
        """Look for what hooks have bound, also after the call."""
        for hook in self.program.hooks:
            self.scan(CURRENT.get(), f"provider in {ctx.stage}", ctx.try_get((hook.name, "bound")))

    def park(self) -> None:
        """Wait in a thread until the program is over, while virtual time goes on."""
        parked = getattr(PLACE, "parked", None)
        if parked is not None:
            parked.set()
            self.released.wait(60)

    def scan(self, request: str, where: str, value: Any) -> None:
        """Look for marks that may not show in a value, and for those of another call."""
        text = repr(value)
        for mark in self.refused:
            if mark in text:
                at = text.index(mark)
                self.broke("what is refused shows nowhere", f"{where}: {text[max(0, at - 80) : at + 80]}")
        for other in ("r0", "r1"):
            if not request.startswith(other) and (f"<{other}" in text or f"of {other}" in text):
                self.broke("no value of another call shows", f"{where} of {request}: {text[:300]}")

    # ------------------------------------------------------------------ bodies

    def began(self, tool: str, view: Any, arguments: Any) -> Ran:
        """Note that a body began, and with what."""
        request = CURRENT.get()
        if view is not None:
            run = base_of(view)
        else:
            run = next((one.run for one in self.runs.values() if one.request == request and one.tool == tool), None)
        ran = Ran(tool, run, copy.deepcopy(arguments))
        self.bodies.append(ran)
        self.scan(request, f"arguments of {tool}", arguments)
        return ran

    def of_body(self, request: str, tool: str = "outer") -> list[Ran]:
        """Return the runs of a body in one call."""
        return [one for one in self.bodies if one.tool == tool and self.runs[id(one.run)].request == request]
