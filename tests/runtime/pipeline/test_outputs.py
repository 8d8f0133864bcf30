"""Outputs are JSON, made once when the body returns; each consumer gets the same, and the first answer equals a repeat."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import itertools
import threading
import types
from collections import ChainMap, Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, NaiveDatetime
from typing_extensions import TypedDict

from callgate import Effects, Gate, Hook, InvokeContext, Options, ToolCall, ToolContext, ToolRecord, User, tool
from callgate.hooks import Audit, Cache
from callgate.runtime.pipeline.result_json import result_as_json
from callgate.runtime.pipeline.threads import threads_of
from callgate.tools.limits import Limits
from callgate.tools.outputs import LOOSE
from callgate.tools.values import dump

ANN = User("ann")
UNGUARDED: dict[str, Any] = {"allow_unguarded": True, "effects": Effects(durable=False)}
LIMITS = Limits(max_output_bytes=2_000)


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    at: Any


class Model(BaseModel):
    value: Any = None


class Named(BaseModel):
    model_config = ConfigDict(serialize_by_alias=False)
    first_name: str = Field("ann", alias="firstName")


NAMED = Named.model_validate({})


class Outer(BaseModel):
    total: int = Field(1, alias="Total")
    named: Named = NAMED


class Typed(TypedDict):
    part: Any


class Odd:
    pass


VALUES: dict[str, tuple[Any, Any]] = {
    "datetime": (datetime(2026, 5, 1, 10, tzinfo=UTC), "2026-05-01T10:00:00Z"),
    "naive datetime": (datetime(2026, 5, 1, 10), "2026-05-01T10:00:00"),  # noqa: DTZ001
    "date": (date(2026, 5, 1), "2026-05-01"),
    "time": (time(7, 30), "07:30:00"),
    "timedelta": (timedelta(hours=1), "PT1H"),
    "uuid": (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "enum": (Colour.RED, "red"),
    "dataclass": (Row(Decimal("1.20")), {"at": "1.20"}),
    "model": (Model(value=UUID(int=1)), {"value": "00000000-0000-0000-0000-000000000001"}),
    "decimal": (Decimal("12345678901234567890.12"), "12345678901234567890.12"),
    "tuple": ((1, (2,)), [1, [2]]),
    "named tuple": (Point(1, 2), [1, 2]),
    "set": ({1}, [1]),
    "deque": (deque([1]), [1]),
    "bytes": (b"abc", "abc"),
    "counter": (Counter("aab"), {"a": 2, "b": 1}),
    "ordered": (OrderedDict(a=1), {"a": 1}),
    "integer keys": ({1: {2: 3}}, {"1": {"2": 3}}),
    "proxy": (types.MappingProxyType({"a": (1,)}), {"a": [1]}),
    "chain": (ChainMap({"a": 1}), {"a": 1}),
    "keys": ({"a": 1}.keys(), ["a"]),
    "iterator": (None, [0, 1, 2]),  # made anew by each body
    "model of an iterator": (None, {"value": [0, 1, 2]}),
    "null": ({"a": None}, {"a": None}),
    "large integer": (2**80, 2**80),
}
KINDS = ["untyped", "any", "dict", "mapping", "typed dict", "list", "class", "executor", "record", "plain", "hard"]


def value_of(name: str) -> Any:
    if name == "iterator":
        return iter(range(3))
    if name == "model of an iterator":
        return Model(value=iter(range(3)))
    return VALUES[name][0]


def made(kind: str, make: Callable[[], Any]) -> Any:
    """Return a tool of a kind that returns a new value in an object, or in a list."""

    async def untyped():  # type: ignore[no-untyped-def]
        """Give."""
        return {"part": make()}

    async def anything() -> Any:
        """Give."""
        return {"part": make()}

    async def a_dict() -> dict:  # type: ignore[type-arg]
        """Give."""
        return {"part": make()}

    async def a_mapping() -> Mapping[str, Any]:
        """Give."""
        return types.MappingProxyType({"part": make()})

    async def a_typed_dict() -> Typed:
        """Give."""
        return {"part": make()}

    async def a_list() -> list:  # type: ignore[type-arg]
        """Give."""
        return [make()]

    def plain() -> Any:
        """Give."""
        return {"part": make()}

    class AClass:
        """Give."""

        async def run(self) -> Any:
            return {"part": make()}

    class Executor:
        schema = types.SimpleNamespace(name="executor", description="Give.", input_schema={"type": "object"})

        async def execute(self, _input: Any, _context: Any) -> Any:
            return {"part": make()}

    async def execute(_input: Any, _context: Any) -> Any:
        return {"part": make()}

    functions = {
        "untyped": untyped,
        "any": anything,
        "dict": a_dict,
        "mapping": a_mapping,
        "typed dict": a_typed_dict,
        "list": a_list,
        "plain": plain,
    }
    if kind in functions:
        return tool(effect="read", name="gives")(functions[kind])
    if kind == "hard":
        return tool(effect="read", name="gives", hard_deadline=True, deadline=60)(anything)
    if kind == "class":
        return tool(effect="read", name="gives", parameters={"type": "object"})(AClass)
    if kind == "executor":
        return Executor()
    return ToolRecord(
        id="gives", name="Give", description="Give.", input_schema={"type": "object"}, effect="read", execute=execute
    )


async def outcome(item: Any, hooks: Any = (), limits: Limits = LIMITS, name: str = "gives") -> Any:
    async with Gate([item], hooks, options=Options(limits=limits), **UNGUARDED) as gate:
        return await gate.call(ToolCall(id="c", name=name, arguments={}), user=ANN)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("kind", KINDS)
async def test_each_value_in_an_output_of_each_kind_of_tool_is_json(kind: str, name: str) -> None:
    result = await outcome(made(kind, lambda: value_of(name)), name="executor" if kind == "executor" else "gives")
    want = VALUES[name][1]
    assert result.error is None
    assert result.output == ([want] if kind == "list" else {"part": want})
    assert dump(result_as_json(result))


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("way", ["root", "part", "send", "tool responds", "hook responds", "hook sets", "wrapper"])
async def test_each_value_is_json_on_each_way_to_an_output(way: str, name: str) -> None:
    async def gives(ctx: ToolContext) -> Any:
        """Give."""
        if way == "send":
            await ctx.send(value_of(name))
        if way == "tool responds":
            ctx.respond(value_of(name))
        return value_of(name) if way == "root" else 1

    async def streams() -> AsyncIterator[Any]:
        """Give."""
        yield value_of(name)

    class Sets(Hook):
        def will_authorize(self, ctx: InvokeContext) -> None:
            if way == "hook responds":
                ctx.respond(value_of(name))

        async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
            output = await next()
            return value_of(name) if way == "wrapper" else output

        def did_execute(self, ctx: InvokeContext) -> None:
            if way == "hook sets":
                ctx.output = value_of(name)

    function: Any = streams if way == "part" else gives
    async with Gate([tool(effect="read", name="gives")(function)], [Sets()]) as gate:
        events: list[Any] = [e async for e in gate.stream(ToolCall(id="c", name="gives", arguments={}), user=ANN)]
    want, result = VALUES[name][1], events[-1].result
    assert result.error is None
    if way in {"part", "send"}:
        assert [event.value for event in events[:-1]] == [want]
    if way != "send":
        assert result.output == ([want] if way == "part" else want)


@pytest.mark.parametrize("name", VALUES)
async def test_result_cache_ledger_history_and_audit_agree(name: str) -> None:
    seen: list[Any] = []
    rows: list[Any] = []

    class Reads(Hook):
        def did_execute(self, ctx: InvokeContext) -> None:
            seen.append(ctx.output)

        def will_audit(self, ctx: InvokeContext) -> None:
            seen.append(ctx.output_history[-1].value)

    @tool(effect="keyed", key=("n",))
    async def pays(n: int) -> Any:
        """Pay."""
        ran.append(n)
        return {"part": value_of(name)}

    @tool(effect="read")
    async def reads(n: int) -> Any:
        """Read."""
        ran.append(n)
        return {"part": value_of(name)}

    ran: list[int] = []
    hooks = [Reads(), Cache(ttl=60), Audit(rows.append)]
    async with Gate([pays, reads], hooks, **UNGUARDED) as gate:
        for item in ("pays", "reads"):
            first, second = [
                await gate.call(ToolCall(id=str(n), name=item, arguments={"n": 1}), user=ANN) for n in range(2)
            ]
            assert first.output == second.output == {"part": VALUES[name][1]}
            assert dump(first.output) == dump(second.output)
    assert len(ran) == (2 if name != "large integer" else 3)  # a cache keeps no integer beyond 64 bits
    assert all(dump(one) == dump(seen[0]) for one in seen)
    hashes = [row.body["output_hash"] for row in rows if row.body.get("output_hash")]
    assert len(set(hashes)) == 1


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.datetimes(timezones=st.none() | st.just(UTC)),
    st.times(),
    st.uuids(),
    st.sampled_from(Colour),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text("abc", max_size=2), inner, max_size=3),
        st.dictionaries(st.integers(0, 9), inner, max_size=3),
        st.builds(Row, inner),
        st.builds(Model, value=inner),
    ),
    max_leaves=8,
)


@given(values)
def test_a_repeat_gets_the_bytes_of_the_first_answer(value: Any) -> None:
    ran: list[int] = []

    @tool(effect="keyed", key=("n",))
    async def pays(n: int) -> Any:
        """Pay."""
        ran.append(n)
        return value

    async def twice() -> None:
        async with Gate([pays], **UNGUARDED) as gate:
            first, again = [
                await gate.call(ToolCall(id=f"{n}", name="pays", arguments={"n": 1}), user=ANN) for n in (1, 2)
            ]
            assert (first.error, again.replayed, len(ran)) == (None, True, 1)
            assert dump(first.output) == dump(again.output)

    asyncio.run(twice())


# ---------------------------------------------------------------------- what the call holds


@pytest.mark.parametrize("hint", [dict[str, Any], dict[str, str], Any, list[dict[str, str]], Model])
async def test_a_change_by_another_task_after_the_return_does_not_reach_the_caller(hint: Any) -> None:
    inner = {"ssn": "***"}
    whole: Any = {list[dict[str, str]]: [inner], Model: Model.model_construct(value=inner)}.get(hint, inner)
    waiting, changed = asyncio.Event(), asyncio.Event()

    async def gives():  # type: ignore[no-untyped-def]
        """Give."""
        return whole

    gives.__annotations__["return"] = hint

    class Waits(Hook):
        async def will_redact_output(self, ctx: InvokeContext) -> None:
            waiting.set()
            await changed.wait()

    async def changes() -> None:
        await waiting.wait()
        inner["ssn"] = "078-05-1120"
        changed.set()

    result, _ = await asyncio.gather(outcome(tool(effect="read")(gives), [Waits()]), changes())
    assert "078" not in str(result.output)


# ---------------------------------------------------------------------- what has no JSON form

BAD: dict[str, tuple[Any, str, str]] = {
    "root": (Odd(), "/", "Odd"),
    "nested": ({"a": [1, {"b": Odd()}]}, "/a/1/b", "Odd"),
    "in a model": ({"m": Model(value=[Odd()])}, "/m/value/0", "Odd"),
    "in a dataclass": ([Row({"x": object()})], "/0/at/x", "object"),
    "bytes": ({"a": b"\xff"}, "/a", "bytes"),
    "surrogate": ({"a": "\ud800"}, "/a", "str"),
    "not finite": ({"a": [float("nan")]}, "/a/0", "NaN"),
    "a class": ({"a": int}, "/a", "type"),
}


@pytest.mark.parametrize("kind", ["any", "dict", "list", "class", "plain"])
@pytest.mark.parametrize("name", BAD)
async def test_a_value_without_a_json_form_is_named_by_its_path_and_its_type(kind: str, name: str) -> None:
    value, path, found = BAD[name]
    with pytest.raises(Exception, match=r"not JSON|not finite") as raised:
        async with Gate([made(kind, lambda: value)]) as gate:
            await gate.invoke("gives", {}, user=ANN)
    error: Any = raised.value
    assert (error.code, error.stage) == ("invalid_output", "output")
    inside = ("/0" if kind == "list" else "/part") + (path if path != "/" else "")
    assert f"{inside}: must be" in str(error)
    assert found in str(error)


async def test_two_keys_that_are_one_in_json_are_refused() -> None:
    result = await outcome(made("any", lambda: {1: "a", "1": "b"}))
    assert result.error.code == "invalid_output"


@pytest.mark.parametrize("mode", ["development", "production"])
async def test_the_author_of_an_invalid_output_reads_path_and_types_without_values(
    mode: Any, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    @tool(effect="read")
    async def broken() -> dict[str, int]:
        """Break."""
        return {"a": "s3cret"}  # type: ignore[dict-item]

    with caplog.at_level("WARNING", "callgate"):
        async with Gate([broken], mode=mode) as gate:
            result = await gate.call(ToolCall(id="c", name="broken", arguments={}), user=ANN)
    (line,) = [record for record in caplog.records if "output.invalid" in record.getMessage()]
    assert line.levelname == "WARNING"
    printed = capsys.readouterr().err
    for text in [line.getMessage(), *([printed] if mode == "development" else [])]:
        assert "/a: " in text
        assert "integer" in text
        assert "string" in text
        assert "s3cret" not in text
    assert ("/a: " in printed) == (mode == "development")
    assert "/a" not in str(result.error)


# ---------------------------------------------------------------------- types of Python check themselves


@pytest.mark.parametrize("text", ["2026-05-01T10:00:00", "2026-05-01T10:00"])
async def test_a_naive_datetime_is_taken_and_given(text: str) -> None:
    @tool(effect="read")
    async def moves(at: NaiveDatetime, on: time = time(7, 30)) -> dict[str, datetime | time]:
        """Move."""
        return {"at": at, "on": on}

    async with Gate([moves]) as gate:
        found = await gate.call(ToolCall(id="c", name="moves", arguments={"at": text, "on": "07:30"}), user=ANN)
    assert found.output == {"at": "2026-05-01T10:00:00", "on": "07:30:00"}
    assert moves.definition.parameters["properties"]["at"]["format"] == "date-time"  # type: ignore[index]  # for models


async def test_a_datetime_without_an_offset_is_refused_with_the_reason() -> None:
    @tool(effect="read")
    async def books(at: AwareDatetime) -> str:
        """Book."""
        return at.isoformat()

    async with Gate([books]) as gate:
        call = ToolCall(id="c", name="books", arguments={"at": "2026-05-01T10:00:00"})
        found: Any = await gate.call(call, user=ANN)
    assert found.error.code == "invalid_arguments"
    assert "offset" in str(found.error.issues[0])


async def test_the_formats_of_an_authors_own_schema_are_asserted() -> None:
    schema = {"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}}, "required": ["at"]}

    @tool(effect="read", parameters=schema, output_schema={"type": "string", "format": "date-time"})
    async def books(at: str) -> str:
        """Book."""
        return at.removesuffix("Z")

    async with Gate([books]) as gate:
        for text, code in (("2026-05-01T10:00:00", "invalid_arguments"), ("2026-05-01T10:00:00Z", "invalid_output")):
            found: Any = await gate.call(ToolCall(id="c", name="books", arguments={"at": text}), user=ANN)
            assert found.error.code == code


@pytest.mark.parametrize("hint", [Decimal, Decimal | None, float | Decimal, dict[str, Decimal], list[Decimal], Any])
async def test_decimals_keep_their_digits(hint: Any) -> None:
    exact = Decimal("12345678901234567890.12")
    value: Any = {dict[str, Decimal]: {"a": exact}, list[Decimal]: [exact]}.get(hint, exact)

    async def gives():  # type: ignore[no-untyped-def]
        """Give."""
        return value

    gives.__annotations__["return"] = hint
    item: Any = tool(effect="read")(gives)
    async with Gate([item]) as gate:
        assert str(exact) in str(await gate.invoke("gives", {}, user=ANN))
        assert await gate.invoke(item, {}, user=ANN) == (str(exact) if hint is Any else value)


@pytest.mark.parametrize(("hint", "value"), [(Named, NAMED), (Outer, Outer.model_validate({})), (list[Named], [NAMED])])
async def test_the_keys_of_an_output_are_those_of_its_schema(hint: Any, value: Any) -> None:
    async def gives():  # type: ignore[no-untyped-def]
        """Give."""
        return value

    gives.__annotations__["return"] = hint
    item: Any = tool(effect="read")(gives)
    async with Gate([item]) as gate:
        output: Any = await gate.invoke("gives", {}, user=ANN)
        assert await gate.invoke(item, {}, user=ANN) == value
    assert (
        output
        == {
            "named": {"first_name": "ann"},
            "list": [{"first_name": "ann"}],
            "outer": {"total": 1, "named": {"first_name": "ann"}},
        }[getattr(hint, "__name__", "list").lower()]
    )
    assert LOOSE(value) == output
    schema: Any = item.definition.output_schema
    if "properties" in schema:
        assert schema["properties"].keys() == output.keys()


# ---------------------------------------------------------------------- iterators

ENDLESS: dict[str, Callable[[], Any]] = {
    "repeat": lambda: itertools.repeat("x" * 10),
    "nothing": lambda: itertools.repeat(""),
    "objects": lambda: itertools.repeat(Odd()),
    "generator": lambda: (number for number in itertools.count()),
    "nested": lambda: {"a": [itertools.repeat(1)]},
    "in a model": lambda: Model(value=itertools.repeat(1)),
    "of itself": lambda: (itertools.repeat(1) for _ in itertools.count()),
}


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("is_async", [True, False])
async def test_an_endless_iterator_ends_at_the_limit(is_async: bool, name: str) -> None:
    def plain() -> Any:
        """Give."""
        return ENDLESS[name]()

    async def gives() -> Any:
        """Give."""
        return ENDLESS[name]()

    result = await outcome(tool(effect="read", name="gives")(gives if is_async else plain))
    assert result.error.code == "output_too_large"


@pytest.mark.parametrize("hint", [Iterator[int], Iterable[int], Any])
@pytest.mark.parametrize("is_async", [True, False])
async def test_an_iterator_is_read_in_a_thread_and_closed(is_async: bool, hint: Any) -> None:
    threads: list[int] = []
    closed: list[bool] = []

    def numbers() -> Iterator[int]:
        try:
            for number in range(100_000):
                threads.append(threading.get_ident())
                yield number
        finally:
            closed.append(True)

    def plain():  # type: ignore[no-untyped-def]
        """Give."""
        return numbers()

    async def gives():  # type: ignore[no-untyped-def]
        """Give."""
        return numbers()

    function: Any = gives if is_async else plain
    function.__annotations__["return"] = hint
    result = await outcome(tool(effect="read", name="gives")(function))
    assert result.error.code == "output_too_large"
    assert closed == [True]
    assert threading.get_ident() not in threads
    assert len(threads) < 1_000


async def test_the_deadline_ends_the_reading_of_an_iterator() -> None:
    read: list[int] = []

    @tool(effect="read", deadline=0.05, name="gives")
    def gives() -> Any:
        """Give."""

        def numbers() -> Iterator[int]:
            for number in range(1_000):
                read.append(number)
                threading.Event().wait(0.005)
                yield number

        return numbers()

    result = await outcome(gives)
    assert result.error.code == "deadline_exceeded"
    assert not result.pending_release
    assert len(read) < 200


async def test_the_parts_of_a_call_have_one_limit_together() -> None:
    sent: list[int] = []

    @tool(effect="read")
    async def sends(ctx: ToolContext) -> int:
        """Send."""
        for number in range(300):
            await ctx.send("x" * 1_000)
            sent.append(number)
        return 1

    async with Gate([sends], options=Options(limits=LIMITS)) as gate:
        events: list[Any] = [e async for e in gate.stream(ToolCall(id="c", name="sends", arguments={}), user=ANN)]
    assert events[-1].result.error.code == "output_too_large"
    assert len(sent) == 1


@pytest.mark.parametrize(
    ("make", "code"),
    [(Odd, "invalid_output"), (lambda: itertools.repeat("x"), "outcome_unknown")],
    ids=["no JSON form", "stopped while it ran"],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_an_effect_whose_output_is_refused_never_runs_again(
    is_async: bool, make: Callable[[], Any], code: str
) -> None:
    ran: list[int] = []

    def plain(n: int) -> Any:
        """Pay."""
        ran.append(n)
        return make()

    async def pays(n: int) -> Any:
        """Pay."""
        return plain(n)

    item = tool(effect="keyed", key=("n",), name="pays")(pays if is_async else plain)
    async with Gate([item], options=Options(limits=LIMITS), **UNGUARDED) as gate:
        call = ToolCall(id="c", name="pays", arguments={"n": 1})
        codes = [getattr((await gate.call(call, user=ANN)).error, "code", None) for _ in range(2)]
    assert codes[1] == code
    assert ran == [1]


@pytest.mark.parametrize("busy", ["waits until its deadline", "too many wait"])
async def test_an_effect_whose_output_finds_no_thread_never_runs_again(
    busy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    @tool(effect="keyed", key=("n",), deadline=0.2, max_threads=1)
    async def pays(n: int) -> Any:
        """Pay."""
        ran.append(n)
        return iter([1])

    waits, door = threads_of(pays.record), threading.Event()
    if busy == "too many wait":
        monkeypatch.setattr("callgate.runtime.pipeline.threads.MAX_WAITING", 0)
    waits.submit(door.wait)
    try:
        async with Gate([pays], **UNGUARDED) as gate:
            call = ToolCall(id="c", name="pays", arguments={"n": 1})
            codes = [getattr((await gate.call(call, user=ANN)).error, "code", None) for _ in range(2)]
    finally:
        door.set()
    assert codes[1] == "outcome_unknown"
    assert ran == [1]
