"""Every verb takes a tool or its name with arguments, or a ``ToolCall``; anything else is refused with the line to write."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeAlias, cast

import pytest

from callgate import (
    Approve,
    Gate,
    ToolCall,
    UnknownTool,
    User,
    invoke_tool,
    tool,
)
from callgate.runtime.pipeline.streams import Result
from callgate.tools.calls import ANONYMOUS

ANN = User("ann")


@tool(effect="read")
async def double(n: int) -> int:
    """Double a number."""
    return 2 * n


@tool(effect="read")
async def stranger(n: int) -> int:
    """A tool of another gate."""
    return n


Verb: TypeAlias = Callable[..., Awaitable[Any]]


async def invoke(face: Any, *given: Any, **options: Any) -> Any:
    return await face.invoke(*given, **options)


async def call(face: Any, *given: Any, **options: Any) -> Any:
    return (await face.call(*given, **options)).output


async def stream(face: Any, *given: Any, **options: Any) -> Any:
    events = [event async for event in face.stream(*given, **options)]
    return events[-1].result.output


async def submit(face: Any, *given: Any, **options: Any) -> Any:
    return (await (await face.submit(*given, **options))).output


async def call_many(face: Any, *given: Any, **options: Any) -> Any:
    one: Any = given[0] if len(given) == 1 else given
    (result,) = await face.call_many([one], **options)
    return result.output


VERBS = [invoke, call, stream, submit, call_many]
RAISING = [invoke, stream, submit, call_many]
WAYS: dict[str, Callable[[Gate], tuple[Any, ...]]] = {
    "tool": lambda _: (double, {"n": 2}),
    "name": lambda _: ("double", {"n": 2}),
    "text": lambda _: ("double", '{"n": 2}'),
    "record": lambda gate: (gate.registry.get("double"), {"n": 2}),
    "call": lambda _: (ToolCall(name="double", arguments={"n": 2}),),
    "call with text": lambda _: (ToolCall(name="double", arguments='{"n": 2}'),),
    "hydrated": lambda gate: (gate.hydrate(ToolCall(name="double", arguments={"n": 2})),),
}


@pytest.fixture
async def gate() -> AsyncGenerator[Gate]:
    async with Gate([double]) as opened:
        yield opened


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", ["gate", "bound"])
async def test_every_verb_takes_every_way(gate: Gate, kind: str, verb: Verb, way: str) -> None:
    """Contract 83."""
    given = WAYS[way](gate)
    if kind == "gate":
        assert await verb(gate, *given, user=ANN) == 4
        return
    async with gate.session(user=ANN) as session:
        assert await verb(session, *given) == 4


@pytest.mark.parametrize("way", WAYS)
def test_every_verb_of_the_sync_gate_takes_every_way(way: str) -> None:
    gate = Gate([double])
    with gate.sync() as tools:
        given = WAYS[way](gate)
        assert tools.invoke(*given, user=ANN) == 4
        assert tools.call(*given, user=ANN).output == 4
        *_, last = tools.stream(*given, user=ANN)
        assert isinstance(last, Result)
        assert last.result.output == 4
        assert tools.submit(*given, user=ANN).result().output == 4
        (one,) = tools.call_many([given if len(given) == 2 else given[0]], user=ANN)
        assert one.output == 4


@pytest.mark.parametrize("given", [{"n": 2}, '{"n": 2}', ToolCall(name="double", arguments={"n": 2})])
async def test_invoke_tool_takes_arguments_or_a_call(given: Any) -> None:
    """Contract 83."""
    assert await invoke_tool(double, given) == 4


async def test_invoke_tool_takes_what_hydrate_returned(gate: Gate) -> None:
    assert await invoke_tool(double, gate.hydrate(ToolCall(name="double", arguments={"n": 2}))) == 4


async def test_invoke_tool_has_no_registry_and_says_what_to_write() -> None:
    for wrong in ("double", ToolCall(name="double", arguments={"n": 2})):
        with pytest.raises(TypeError, match=r"invoke_tool\(the_tool, call\)"):
            await invoke_tool(wrong, {"n": 2})
    with pytest.raises(ValueError, match="a call of 'other', and the tool is 'double'"):
        await invoke_tool(double, ToolCall(name="other", arguments={"n": 2}))


async def test_a_call_keeps_its_id(gate: Gate) -> None:
    asked = ToolCall(id="c7", name="double", arguments={"n": 2})
    assert (await gate.call(asked)).call_id == "c7"
    made = await gate.call(double, {"n": 2})
    assert (made.call_id.startswith("call_"), made.tool) == (True, "double")


async def test_results_have_the_order_of_the_pairs_and_calls(gate: Gate) -> None:
    asked: list[Any] = [
        (double, {"n": 1}),
        ToolCall(name="double", arguments={"n": 2}),
        ("double", {"n": 3}),
        ("nix", {}),
    ]
    results = await gate.call_many(asked)
    assert [result.output for result in results] == [2, 4, 6, None]
    assert [result.outcome for result in results][-1] == "invalid"


@pytest.mark.parametrize("verb", [invoke, stream, submit])
async def test_a_call_has_its_own_arguments(gate: Gate, verb: Verb) -> None:
    asked = ToolCall(name="double", arguments={"n": 2})
    for given in (asked, gate.hydrate(asked)):
        with pytest.raises(TypeError, match=r"gate\.call\(call\)"):
            await verb(gate, given, {"n": 3})


@pytest.mark.parametrize("wrong", [None, 5, {"name": "double"}, ["double"], object()])
@pytest.mark.parametrize("verb", [invoke, stream, submit])
async def test_anything_else_is_refused_with_the_line_to_write(gate: Gate, verb: Verb, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r'gate.call\("name", \{...\}\)'):
        await verb(gate, wrong, {"n": 2})


@pytest.mark.parametrize("wrong", ["double", ("double",), ("double", {}, {}), None, 5, {"name": "double"}])
async def test_call_many_refuses_what_is_no_call_and_no_pair(gate: Gate, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r'\("name", \{...\}\)'):
        await gate.call_many([wrong])


@pytest.mark.parametrize("wrong", ["double", ToolCall(name="double", arguments={"n": 2}), {"name": "double"}])
async def test_call_many_refuses_a_single_call(gate: Gate, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"gate.call_many\(\[call, ...\]\)"):
        await gate.call_many(wrong)


@pytest.mark.parametrize("verb", RAISING)
async def test_a_tool_of_another_gate_is_refused(gate: Gate, verb: Verb) -> None:
    with pytest.raises(UnknownTool):
        await verb(gate, stranger, {"n": 2})


async def test_a_name_that_does_not_exist_has_a_result(gate: Gate) -> None:
    """Contract 76."""
    result = await gate.call("doubel", {"n": 2})
    assert result.error is not None
    assert result.error.code == "unknown_tool"


async def test_calls_are_not_remembered(gate: Gate) -> None:
    """Else a gate would keep the arguments of each call."""
    for number in range(20):
        await gate.invoke(ToolCall(name="double", arguments=f'{{"n": {number}}}'))
        await gate.invoke(gate.hydrate(ToolCall(name="double", arguments={"n": number})))
    assert len(gate._plans.current.live) == 0
    await gate.invoke("double", {"n": 1})
    assert list(gate._plans.current.live) == ["double"]


# ---------------------------------------------------------------------- the user


@pytest.mark.parametrize("wrong", ["ann", None, {"id": "ann"}, 5])
@pytest.mark.parametrize("verb", RAISING)
async def test_another_type_of_user_is_refused_with_the_line_to_write(gate: Gate, verb: Verb, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r'user takes a User, not \w+; write user=User\("ann"\)'):
        await verb(gate, "double", {"n": 2}, user=wrong)


@pytest.mark.parametrize(
    "use",
    [
        lambda gate, wrong: gate.definitions(user=wrong),
        lambda gate, wrong: gate.tools_for(wrong),
        lambda gate, wrong: gate.job("id", user=wrong),
    ],
)
async def test_a_wrong_user_is_refused_at_once_by_what_is_not_awaited(
    gate: Gate, use: Callable[[Any, Any], Any]
) -> None:
    with pytest.raises(TypeError, match=r'=User\("ann"\)'):
        use(gate, "ann")


WRONG_USER: Any = "ann"
MISTAKES: dict[str, Callable[[Gate], Any]] = {
    "invoke, user": lambda gate: gate.invoke("double", {"n": 2}, user=WRONG_USER),
    "invoke, tool": lambda gate: gate.invoke(cast("Any", 5)),
    "invoke, option": lambda gate: gate.invoke("double", {"n": 2}, **cast("Any", {"wrong": 1})),
    "invoke, two sets of arguments": lambda gate: gate.invoke(ToolCall(name="double"), {"n": 2}),
    "call_many, user": lambda gate: gate.call_many([("double", {"n": 2})], user=WRONG_USER),
    "call_many, calls": lambda gate: gate.call_many(cast("Any", "double")),
    "stream, user": lambda gate: gate.stream("double", {"n": 2}, user=WRONG_USER),
    "stream, tool": lambda gate: gate.stream(cast("Any", 5)),
    "stream, two sets of arguments": lambda gate: gate.stream(ToolCall(name="double"), {"n": 2}),
    "submit, user": lambda gate: gate.submit("double", {"n": 2}, user=WRONG_USER),
    "submit, tool": lambda gate: gate.submit(cast("Any", 5)),
    "pick, user": lambda gate: gate.pick("double", user=WRONG_USER),
    "resume, approver": lambda gate: gate.resume("handle", Approve(), approver=WRONG_USER),
    "session, user": lambda gate: gate.session(user=WRONG_USER),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_no_verb_raises_before_it_is_awaited(gate: Gate, mistake: str) -> None:
    """Issue 15, D7: a mistake is raised where the caller awaits, for every verb alike."""
    begun = MISTAKES[mistake](gate)
    with pytest.raises(TypeError):
        if hasattr(begun, "__aenter__"):
            async with begun:
                pass
        else:
            await (anext(begun) if hasattr(begun, "__anext__") else begun)


async def test_a_subclass_of_user_is_a_user(gate: Gate) -> None:
    class Employee(User):
        """A user with more to say."""

    assert await gate.invoke("double", {"n": 2}, user=Employee("ann")) == 4
    assert await gate.invoke("double", {"n": 2}, user=ANONYMOUS) == 4


async def test_invoke_tool_takes_a_user() -> None:
    wrong: Any = "ann"
    with pytest.raises(TypeError, match=r'user=User\("ann"\)'):
        await invoke_tool(double, {"n": 2}, user=wrong)
