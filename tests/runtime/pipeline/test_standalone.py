"""``invoke_tool`` by itself."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping
from typing import Annotated, Any
from weakref import ref

import pytest

from callgate import (
    Denied,
    Hook,
    Invalid,
    InvokeContext,
    Provide,
    ProviderRegistry,
    RetryLater,
    Stage,
    ToolComponent,
    ToolContext,
    ToolDefinition,
    ToolRecord,
    User,
    invoke_tool,
    tool,
)
from callgate.errors import HookError, ProviderError
from callgate.hooks.stages import STAGES, Section
from callgate.runtime.pipeline import standalone
from callgate.runtime.pipeline.compile import compile_plan
from tests.hooks.making import USER, Watch, acting, at, record, refusing


@tool(effect="irreversible", tolerant=True)
async def refund(order: int, note: str = "") -> dict[str, Any]:
    """Give money back."""
    return {"order": order, "note": note}


@tool
def plain(n: int) -> int:
    """A plain function."""
    return n + 1


@tool(parameters={"type": "object"}, effect="read")
class Component(ToolComponent):
    """A class."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments

    async def run(self, params: Any = None) -> Any:
        return self.arguments


async def undecorated(n: int) -> int:
    """A function."""
    return n + 2


async def execute(arguments: Mapping[str, Any], ctx: ToolContext) -> Any:
    return [arguments["n"], ctx.user.id, ctx.session_id, ctx.request_id]


RECORD = ToolRecord(ToolDefinition("by_hand", "By hand.", {"type": "object"}), execute)


@pytest.mark.parametrize(
    ("what", "raw", "output"),
    [
        (refund, {"order": 7}, {"order": 7, "note": ""}),
        (refund, '{"order": 7, "note": "x"}', {"order": 7, "note": "x"}),
        (plain, {"n": 1}, 2),
        (Component, {"x": [1]}, {"x": [1]}),
        (undecorated, {"n": 1}, 3),
        (RECORD, {"n": 1}, [1, "u", "s", "r"]),
    ],
)
async def test_it_runs_whatever_is_a_tool(what: Any, raw: Any, output: Any) -> None:
    """Contract 81, 83."""
    assert await invoke_tool(what, raw, user=USER, session_id="s", request_id="r") == output


async def test_it_is_open_and_hooks_close_it() -> None:
    """Contract 83, 94."""
    assert await invoke_tool(refund, {"order": 1}) == {"order": 1, "note": ""}
    closed = {"will_authorize": [at(Stage.WILL_AUTHORIZE, lambda ctx: ctx.abort("no"))]}
    with pytest.raises(Denied, match="no"):
        await invoke_tool(refund, {"order": 1}, global_hooks_by_stage=closed)
    assert await invoke_tool(refund, {"order": 1}) == {"order": 1, "note": ""}


async def test_it_runs_the_whole_lifecycle() -> None:
    """Contract 83, 94, 97."""
    watch, own = Watch(), Watch()
    by_stage = {stage: [watch.hook] for stage in Stage}
    assert await invoke_tool(record(hooks=[own.hook]), {"n": 1}, global_hooks_by_stage=by_stage) == 2
    never = {Stage.DID_CACHE_HIT, Stage.ON_RETRY, Stage.ON_GIVE_UP, Stage.ON_ERROR}
    assert watch.stages == own.stages == [stage for stage in Stage if stage not in never]


async def test_global_hooks_and_the_tools_own_both_apply_by_stage_or_whole() -> None:
    """Contract 94, C23."""
    log: list[str] = []

    def hook(name: str) -> Hook:
        return at(Stage.WILL_AUTHORIZE, lambda ctx: log.append(name))

    tool = record(hooks=[hook("own")], hooks_by_stage={"will_authorize": [hook("own, listed")]})
    await invoke_tool(tool, {"n": 1}, global_hooks_by_stage={Stage.WILL_AUTHORIZE: [hook("global")]})
    assert log == ["global", "own", "own, listed"]


async def test_the_same_call_with_other_hooks_or_providers_is_another_plan() -> None:
    """Contract 83, I8."""
    log: list[str] = []

    def hook(name: str) -> Hook:
        return at(Stage.WILL_AUTHORIZE, lambda ctx: log.append(f"{name} {ctx.try_get('x')}"))

    first, second = hook("first"), hook("second")
    one, two = ProviderRegistry(), ProviderRegistry()
    one.register_singletons({"x": 1})
    two.register_singletons({"x": 2})
    same = record()
    for registry, hooks in ((one, [first]), (two, [first]), (one, [second]), (one, [second, first]), (one, [first])):
        await invoke_tool(same, {"n": 1}, registry=registry, global_hooks_by_stage={"will_authorize": hooks})
    assert log == ["first 1", "first 2", "second 1", "second 1", "first 1", "first 1"]


@pytest.mark.parametrize("given", [False, True], ids=["without a registry", "with a registry"])
async def test_a_plan_is_compiled_once_for_the_same_tool_and_hooks(
    given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 83."""
    compiled: list[str] = []
    original = compile_plan

    def compile(tool: ToolRecord, *rest: Any, **options: Any) -> Any:
        compiled.append(tool.id)
        return original(tool, *rest, **options)

    monkeypatch.setattr(standalone, "compile_plan", compile)
    same, hooks = record(), {"will_authorize": [at(Stage.WILL_AUTHORIZE, lambda ctx: None)]}
    options: dict[str, Any] = {"registry": ProviderRegistry()} if given else {}
    for number in range(3):
        assert await invoke_tool(same, {"n": number}, global_hooks_by_stage=hooks, **options) == 2 * number
    assert compiled == ["double"]


async def test_a_tool_that_nobody_holds_is_forgotten_with_its_plans() -> None:
    """Contract 8, 83."""
    made = record()
    gone = ref(made)
    assert await invoke_tool(made, {"n": 1}, registry=ProviderRegistry()) == 2
    del made
    await asyncio.sleep(0)  # until the next turn, the loop is watched for a call that blocks it
    gc.collect()
    assert gone() is None


async def test_calls_without_a_registry_share_nothing() -> None:
    """Contract C26, I8."""
    seen: list[Any] = []

    def act(ctx: InvokeContext) -> None:
        seen.append(ctx.try_get("x"))
        ctx.bind_provider("x", ctx.user.id, "session")

    hooks = {"will_bind_providers": [at(Stage.WILL_BIND_PROVIDERS, act)]}
    same = record()
    for user in ("a", "b"):
        await invoke_tool(same, {"n": 1}, user=User(user), session_id="s", global_hooks_by_stage=hooks)
    assert seen == [None, None]


async def test_providers_come_from_the_registry() -> None:
    """Contract 83, 84, 85."""

    class Db: ...

    db = Db()

    @tool(effect="read")
    async def read(n: int, *, store: Annotated[Any, Provide["db"]]) -> bool:
        """Read."""
        return store is db

    registry = ProviderRegistry()
    registry.register_singletons({"db": db})
    assert await invoke_tool(read, {"n": 1}, registry=registry) is True
    with pytest.raises(ProviderError, match="'store' needs 'db', which has no provider"):
        await invoke_tool(read, {"n": 1})
    registry.register_session_providers("s", {"db": Db()})
    assert await invoke_tool(read, {"n": 1}, registry=registry, session_id="s") is False


async def test_hook_classes_are_made_by_resolve_once_a_call() -> None:
    """Contract 82, 83, C1f."""
    made: list[Any] = []

    def resolve(cls: Any) -> Any:
        made.append(cls())
        return made[-1]

    stages = (Stage.WILL_AUTHORIZE, Stage.WILL_ACQUIRE_QUOTA, Stage.DID_RELEASE_QUOTA, Stage.WILL_AUDIT)
    cls = acting({stage: lambda ctx: None for stage in stages})
    hooks = {stage: [cls] for stage in stages}
    for number in (1, 2):
        await invoke_tool(record(), {"n": 1}, resolve=resolve, global_hooks_by_stage=hooks)
        assert len(made) == number


async def test_nested_calls_have_the_same_hooks() -> None:
    """Contract 83, 94, I6."""

    @tool(effect="read")
    async def outer(n: int, ctx: ToolContext) -> Any:
        """Call another."""
        return await ctx.call(plain, {"n": n})

    users: list[str] = []
    watch = at(Stage.WILL_AUTHORIZE, lambda ctx: users.append(f"{ctx.user.id} {ctx.tool_id} {ctx.depth}"))
    hooks = {"will_authorize": [watch]}
    assert await invoke_tool(outer, {"n": 1}, user=USER, global_hooks_by_stage=hooks) == 2
    assert users == ["u outer 0", "u plain 1"]


@pytest.mark.parametrize("stage", [s for s in Stage if STAGES[s].section in {Section.BEFORE, Section.SHAPING}])
async def test_the_original_error_is_raised(stage: Stage) -> None:
    """Contract 83, 101, C20."""
    boom = KeyError("boom")
    with pytest.raises(KeyError) as caught:
        await invoke_tool(record(), {"n": 1}, global_hooks_by_stage={stage: [at(stage, refusing(boom))]})
    assert caught.value is boom


async def test_it_raises_what_the_other_outcomes_are_called() -> None:
    """Contract 83, 88."""
    with pytest.raises(Invalid, match="n"):
        await invoke_tool(record(), {"n": "x"})
    with pytest.raises(RetryLater):
        asks = at(Stage.WILL_AUTHORIZE, lambda ctx: ctx.retry_after(5))
        await invoke_tool(record(), {"n": 1}, global_hooks_by_stage={"will_authorize": [asks]})
    with pytest.raises(HookError):
        await invoke_tool(record(), {"n": 1}, global_hooks_by_stage={"will_authorize": [object()]})


async def test_it_can_be_called_many_times_at_once() -> None:
    """Contract 83, I8."""

    async def slow(n: int) -> int:
        await asyncio.sleep(0)
        return n

    same = record(slow)
    assert await asyncio.gather(*(invoke_tool(same, {"n": n}) for n in range(20))) == list(range(20))
