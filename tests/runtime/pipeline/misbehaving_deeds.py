"""What misbehaving hooks and tools do, by name.

A deed takes a ``Here``, the place in which it is done. What it returns, the hook returns, unless it is None; an
awaitable is awaited first. What it does to values carries a mark, so that it can be recognised wherever it shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from callgate import Denied, Invalid, RetryLater, ToolError, User
from callgate.errors import ControlRespond, DeadlineExceeded, OutcomeUnknown, ProviderError, StageError
from callgate.hooks.stages import STAGES, May, Stage

INTERNAL = "internal wiring"
"""In the text of every error that no model may read."""
SECRET = "secret"
"""In every part and output of the tool that is not redacted."""
ROOT = User("root", tenant="other", roles={"admin"})


class Group(Enum):
    """What becomes of a call after a deed."""

    CALM = "the call goes on"
    LATER = "a task does it later"
    WAITS = "it waits"
    STEERS = "it ends the call"
    RAISES = "it fails"
    RETURNS = "it returns a value"


@dataclass(frozen=True)
class Deed:
    """One deed; ``hangs`` says that it waits for something that never comes.

    A program does not hang where it ``swallows`` cancellations: it need not end.
    """

    act: Callable[[Here], Any]
    group: Group
    is_async: bool = False
    hangs: bool = False
    swallows: bool = False
    forks: bool = False


@dataclass
class Here:
    """Where a deed is done: the context of a hook or a tool, and who does it."""

    world: Any
    ctx: Any
    who: str
    shadow: bool = False
    limited: bool = False
    proceed: Callable[..., Awaitable[Any]] | None = None
    arguments: Any = None
    output: Any = None

    def attempt(self, power: May, write: Callable[[str], Any]) -> None:
        """Write a marked value, and see that the stage table decides whether that is let through."""
        stage, mark = Stage(self.ctx.stage), self.world.mark(self.who, self.ctx.stage)
        allowed = power in STAGES[stage].may
        try:
            write(mark)
        except (StageError, ProviderError):
            self.world.refused.add(mark)
            if allowed and not self.world.has_ended(self.ctx):
                self.world.broke("the table decides", f"{self.who} was refused {power} in {stage}")
        else:
            if self.shadow:
                self.world.refused.add(mark)
            if not allowed:
                self.world.broke("the table decides", f"{self.who} was let through with {power} in {stage}")

    def value(self, mark: str) -> dict[str, Any]:
        """Return a value that the schema admits, with a mark at each depth."""
        return {"n": 1, "note": mark, "items": [{"deep": [mark]}]}


# ---------------------------------------------------------------------- writes


def _set(name: str, power: May, make: Callable[[Here, str], Any] = Here.value) -> Callable[[Here], None]:
    return lambda here: here.attempt(power, lambda mark: setattr(here.ctx, name, make(here, mark)))


def _keep_and_change(here: Here) -> None:
    """Set a value, and change it afterwards by the reference that was kept."""
    for name, power in (("input", May.INPUT), ("output", May.OUTPUT), ("masked_input", May.MASK)):
        kept: dict[str, Any] = {}

        def write(mark: str, name: str = name, kept: dict[str, Any] = kept) -> None:
            kept.update(here.value(mark))
            setattr(here.ctx, name, kept)

        here.attempt(power, write)
        _change(here, kept)


def _change(here: Here, value: Any) -> None:
    """Change a value in place, at each depth."""
    mark = here.world.forbidden_mark(here.who)
    changes: tuple[Callable[[], Any], ...] = (
        lambda: value.__setitem__("note", mark),
        lambda: value.update(note=mark),
        lambda: value["items"].append(mark),
        lambda: value["items"][0]["deep"].append(mark),
        lambda: value["items"][0].update(deep=mark),
    )
    for change in changes:
        try:
            change()
        except (StageError, TypeError, KeyError, IndexError, AttributeError):
            continue


def _in_place(name: str) -> Callable[[Here], None]:
    def act(here: Here) -> None:
        try:
            value = getattr(here.ctx, name)
        except StageError:
            return
        _change(here, value)

    return act


def _change_histories(here: Here) -> None:
    for entry in (*here.ctx.input_history, *here.ctx.output_history):
        _change(here, entry.value)


def _set_user(here: Here) -> None:
    try:
        here.ctx.user = ROOT
    except StageError:
        return
    here.world.broke("the user is fixed", f"{here.who} set ctx.user")


def _set_cache_hit(here: Here) -> None:
    try:
        here.ctx.cache_hit = True
    except StageError:
        return
    if here.ctx.stage is not Stage.WILL_READ_CACHE:
        here.world.broke("the table decides", f"{here.who} set cache_hit in {here.ctx.stage}")


def _data(here: Here) -> None:
    mark = here.world.mark(here.who, here.ctx.stage)
    if here.shadow:
        here.world.refused.add(mark)
    here.ctx.data[here.who] = mark
    shared = here.ctx.data.get("shared")
    if here.shadow and shared is not None:
        _change(here, shared)


def _session(here: Here) -> None:
    mark = here.world.mark(here.who, here.ctx.stage)
    if here.shadow:
        here.world.refused.add(mark)
    if not here.world.has_ended(here.ctx):
        here.ctx.session[here.who] = mark


def _bind(here: Here, scope: Any = "request") -> None:
    here.attempt(May.BIND, lambda mark: here.ctx.bind_provider((here.who, "bound"), mark, scope))


# ---------------------------------------------------------------------- with the runtime


async def _send(here: Here, beside: str = "") -> None:
    await here.world.send(here.ctx, here.who + beside)


async def _send_at_once(here: Here) -> None:
    await asyncio.gather(*(here.world.spawn(_send(here, f".{number}")) for number in (0, 1, 2, 0)))


async def _lease(here: Here) -> None:
    held = here.world.lease_of(here.ctx, here.who)
    stage = Stage(here.ctx.stage)
    try:
        await here.ctx.lease(held)
    except StageError:
        return
    if here.shadow or May.LEASE not in STAGES[stage].may:
        here.world.broke("the table decides", f"{here.who} took a lease in {stage}")


async def _nested(here: Here) -> None:
    if here.ctx.depth == 0:
        await here.ctx.call("inner", here.value(here.world.mark(here.who, "nested")))


async def _resolve(here: Here) -> None:
    await here.ctx.resolve("second")


def _caught(act: Callable[[Here], Awaitable[Any]]) -> Callable[[Here], Awaitable[None]]:
    async def caught(here: Here) -> None:
        try:
            await act(here)
        except asyncio.CancelledError:
            raise
        except BaseException:  # noqa: BLE001  (what other hooks do to it)
            return

    return caught


def _later(act: Callable[[Here], Any], turns: int = 4) -> Callable[[Here], None]:
    """Do it in a task that outlives the hook, and catch whatever comes of it."""

    async def work(here: Here) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
            try:
                answer = act(here)
                if isinstance(answer, Awaitable):
                    await answer
            except asyncio.CancelledError:
                raise
            except BaseException:  # noqa: BLE001  (whatever is refused)
                continue

    return lambda here: here.world.spawn(work(here))


def _write_all(here: Here) -> None:
    for name in ("set input", "set output", "set masked input", "set error", "set user", "bind"):
        DEEDS[name].act(here)
    for name in ("input", "output", "raw_input", "masked_input"):
        _in_place(name)(here)
    if not here.shadow:  # it sees its own
        here.world.look_at_bound(here.ctx)


# ---------------------------------------------------------------------- ends


def _raise(make: Callable[[], BaseException]) -> Callable[[Here], Any]:
    def act(here: Here) -> None:
        raise make()

    return act


async def _swallow(here: Here) -> None:
    if here.limited and here.ctx.depth:  # or nothing would end what hangs there
        return
    try:
        await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        await asyncio.sleep(0.05)


async def _hang(here: Here) -> None:
    """Hang; not in a nested call, where that would use up the time of the step that calls it."""
    if here.ctx is None or not here.ctx.depth or (here.limited and here.world.program.nests_unlimited):
        await asyncio.Event().wait()


class Later:
    """An awaitable of False that is no coroutine."""

    def __await__(self) -> Generator[Any, None, bool]:
        yield from asyncio.sleep(0).__await__()
        return False


ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError(INTERNAL),
    "ToolError": lambda: ToolError("told"),
    "Denied": lambda: Denied(INTERNAL),
    "Invalid": lambda: Invalid(INTERNAL),
    "RetryLater": lambda: RetryLater(5, INTERNAL),
    "ExceptionGroup": lambda: ExceptionGroup(INTERNAL, [ValueError(INTERNAL), ToolError("told")]),
    "BaseExceptionGroup": lambda: BaseExceptionGroup(INTERNAL, [SystemExit(3), asyncio.CancelledError()]),
    "CancelledError": lambda: asyncio.CancelledError(INTERNAL),
    "StopIteration": lambda: StopIteration(INTERNAL),
    "StopAsyncIteration": lambda: StopAsyncIteration(INTERNAL),
    "GeneratorExit": lambda: GeneratorExit(INTERNAL),
    "SystemExit": lambda: SystemExit(INTERNAL),
    "KeyboardInterrupt": lambda: KeyboardInterrupt(INTERNAL),
    "RecursionError": lambda: RecursionError(INTERNAL),
    "TimeoutError": lambda: TimeoutError(INTERNAL),
    "DeadlineExceeded": lambda: DeadlineExceeded(INTERNAL),
    "OutcomeUnknown": lambda: OutcomeUnknown(INTERNAL),
    "ControlRespond": lambda: ControlRespond("raised by hand"),
}
RAISES = {f"raise {name}": Deed(_raise(make), Group.RAISES) for name, make in ERRORS.items()}
STEERS = {
    "respond": Deed(lambda here: here.ctx.respond(here.value("responded")), Group.STEERS),
    "respond wrongly": Deed(lambda here: here.ctx.respond(object()), Group.STEERS),
    "respond unchecked": Deed(lambda here: here.ctx.respond("a challenge", validate=False), Group.STEERS),
    "abort": Deed(lambda here: here.ctx.abort(INTERNAL), Group.STEERS),
    "retry_after": Deed(lambda here: here.ctx.retry_after(5, INTERNAL), Group.STEERS),
    "suspend": Deed(lambda here: here.ctx.suspend("input", "May it?"), Group.STEERS),
}
_TASKS = {
    "send": _send,
    "send at once": _send_at_once,
    "lease": _lease,
    "nested": _nested,
    "resolve": _resolve,
}
DEEDS: dict[str, Deed] = {
    "set input": Deed(_set("input", May.INPUT), Group.CALM),
    "set output": Deed(_set("output", May.OUTPUT), Group.CALM),
    "set masked input": Deed(_set("masked_input", May.MASK), Group.CALM),
    "set error": Deed(_set("error", May.REPLACE_ERROR, lambda _, mark: ToolError(f"told {mark}")), Group.CALM),
    "set input wrongly": Deed(_set("input", May.INPUT, lambda _, mark: {"n": mark}), Group.STEERS),
    "set output wrongly": Deed(_set("output", May.OUTPUT, lambda *_: object()), Group.STEERS),
    "mask output": Deed(
        lambda here: here.attempt(May.OUTPUT, lambda mark: here.ctx.mask_output(here.value(mark))), Group.CALM
    ),
    "set user": Deed(_set_user, Group.CALM),
    "set cache_hit": Deed(_set_cache_hit, Group.CALM),
    "bind": Deed(_bind, Group.CALM),
    "bind for the session": Deed(lambda here: _bind(here, "session"), Group.CALM),
    "keep and change": Deed(_keep_and_change, Group.CALM),
    "change input": Deed(_in_place("input"), Group.CALM),
    "change output": Deed(_in_place("output"), Group.CALM),
    "change raw input": Deed(_in_place("raw_input"), Group.CALM),
    "change masked input": Deed(_in_place("masked_input"), Group.CALM),
    "change the call": Deed(lambda here: _change(here, here.ctx.tool_call.arguments), Group.CALM),
    "change histories": Deed(_change_histories, Group.CALM),
    "data": Deed(_data, Group.CALM),
    "session": Deed(_session, Group.CALM),
    "progress": Deed(lambda here: here.ctx.progress(0.5, message="half"), Group.CALM),
    **{name: Deed(_caught(act), Group.CALM, is_async=True) for name, act in _TASKS.items()},
    **{f"{name} later": Deed(_later(_caught(act)), Group.LATER) for name, act in _TASKS.items()},
    "write later": Deed(_later(_write_all, 12), Group.LATER),
    "respond later": Deed(_later(lambda here: here.ctx.respond("late"), 1), Group.LATER),
    "abort later": Deed(_later(lambda here: here.ctx.abort(INTERNAL), 1), Group.LATER),
    "yield": Deed(lambda _: asyncio.sleep(0), Group.WAITS, is_async=True),
    "sleep": Deed(lambda _: asyncio.sleep(0.01), Group.WAITS, is_async=True),
    "swallow a cancellation": Deed(_swallow, Group.WAITS, is_async=True, swallows=True),
    "hang": Deed(_hang, Group.WAITS, is_async=True, hangs=True),
    **STEERS,
    **RAISES,
    "return False": Deed(lambda _: False, Group.RETURNS),
    "return True": Deed(lambda _: True, Group.RETURNS),
    "return 0": Deed(lambda _: 0, Group.RETURNS),
    "return text": Deed(lambda _: "no", Group.RETURNS),
    "return a list": Deed(lambda _: [1], Group.RETURNS),
    "return an awaitable of False": Deed(lambda _: Later(), Group.RETURNS),
}


# ---------------------------------------------------------------------- around_execute


async def _replace(here: Here) -> Any:
    assert here.proceed is not None
    await here.proceed()
    return here.value(here.world.mark(here.who, "around"))


async def _twice(here: Here) -> Any:
    assert here.proceed is not None
    await here.proceed()
    return await here.proceed()


async def _both_at_once(here: Here) -> Any:
    assert here.proceed is not None
    tasks = [here.world.spawn(_contained(here.proceed())) for _ in range(2)]
    return (await asyncio.gather(*tasks))[0]


def _on_error(kinds: type[BaseException], again: bool) -> Callable[[Here], Awaitable[Any]]:
    async def act(here: Here) -> Any:
        assert here.proceed is not None
        try:
            return await here.proceed()
        except kinds:
            return await here.proceed() if again else here.value(here.world.mark(here.who, "fallback"))

    return act


async def _contained(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except GeneratorExit as error:  # Python closes every coroutine that awaits a task which ends so
        raise RuntimeError(INTERNAL) from error


async def _in_a_task(here: Here) -> Any:
    assert here.proceed is not None
    return await here.world.spawn(_contained(here.proceed()))


async def _forsaken(here: Here) -> Any:
    assert here.proceed is not None
    here.world.spawn(here.proceed())
    for _ in range(2):
        await asyncio.sleep(0)
    return here.value(here.world.mark(here.who, "forsaken"))


async def _limited(here: Here) -> Any:
    assert here.proceed is not None
    async with asyncio.timeout(0.01):
        return await here.proceed()


NEXT_DEEDS: dict[str, Deed] = {
    "next": Deed(lambda here: here.proceed(), Group.CALM),  # type: ignore[misc]
    "next, replace": Deed(_replace, Group.CALM),
    "next of another context": Deed(lambda here: here.proceed(object()), Group.RAISES),  # type: ignore[misc]
    "next twice": Deed(_twice, Group.CALM),
    "next twice at once": Deed(_both_at_once, Group.CALM, forks=True),
    "next once more on an error": Deed(_on_error(Exception, True), Group.CALM),
    "fall back on an error": Deed(_on_error(Exception, False), Group.CALM),
    "fall back on everything": Deed(_on_error(BaseException, False), Group.CALM, swallows=True),
    "next in a task": Deed(_in_a_task, Group.CALM, forks=True),
    "next in a forsaken task": Deed(_forsaken, Group.CALM, forks=True),
    "next under a timeout": Deed(_limited, Group.CALM, forks=True),
}
"""The last deed in ``around_execute``; without it the hook never calls ``next``."""


# ---------------------------------------------------------------------- in the tool


def _change_arguments(here: Here) -> None:
    _change(here, here.arguments)


def _output(make: Callable[[], Any]) -> Callable[[Here], None]:
    def act(here: Here) -> None:
        here.output = make()

    return act


def _deep() -> Any:
    value: Any = []
    for _ in range(500):
        value = [value]
    return value


async def _send_beside(here: Here) -> None:
    here.world.spawn(_caught(_send)(here))
    await asyncio.sleep(0)


async def _fail_in_a_group(here: Here) -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError(INTERNAL)

    async with asyncio.TaskGroup() as group:
        group.create_task(fails())
        await asyncio.sleep(0.01)


async def _stubborn(here: Here) -> None:
    until = asyncio.get_running_loop().time() + 0.6
    while (left := until - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


def _lease_in_body(here: Here) -> Any:
    return here.ctx.lease(here.world.lease_of(here.ctx, here.who))


BODY_DEEDS: dict[str, Deed] = {
    "change arguments": Deed(_change_arguments, Group.CALM),
    "progress": Deed(DEEDS["progress"].act, Group.CALM),
    **{name: Deed(act, Group.CALM, is_async=True) for name, act in _TASKS.items() if name != "lease"},
    "lease": Deed(_lease_in_body, Group.CALM, is_async=True),
    "nested, caught": Deed(_caught(_nested), Group.CALM, is_async=True),
    "send, caught": Deed(_caught(_send), Group.CALM, is_async=True),
    "send beside": Deed(_send_beside, Group.LATER, is_async=True),
    "lease later": Deed(_later(_caught(_lease_in_body), 2), Group.LATER, is_async=True),
    "yield": DEEDS["yield"],
    "sleep": DEEDS["sleep"],
    "swallow a cancellation": DEEDS["swallow a cancellation"],
    "stubborn": Deed(_stubborn, Group.WAITS, is_async=True, swallows=True),
    "hang": DEEDS["hang"],
    "park": Deed(lambda here: here.world.park(), Group.WAITS, hangs=True),
    "raise in a group": Deed(_fail_in_a_group, Group.RAISES, is_async=True),
    **STEERS,
    **RAISES,
    "ToolError without an effect": Deed(_raise(lambda: ToolError("told", no_effect=True)), Group.STEERS),
    "return no JSON": Deed(_output(object), Group.RETURNS),
    "return too deep": Deed(_output(_deep), Group.RETURNS),
    "return infinity": Deed(_output(lambda: {"x": float("inf")}), Group.RETURNS),
    "return None": Deed(_output(lambda: None), Group.RETURNS),
}
