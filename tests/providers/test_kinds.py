"""What an application hands over is checked when it hands it over: the types of settings, and what functions take."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from callgate import Effects, Gate, Hook, Jobs, Options, Sessions, Suspensions, ToolRecord, as_tool, pick_tools, tool
from callgate.errors import DefinitionError, HookError, RegistrationError
from callgate.hooks import Backoff, Cache, CircuitBreaker, Concurrency, Quota, RequireApproval, Retry, forbid, permit
from callgate.jobs import JobRetries, Schedule
from callgate.mcp import LargeResults, McpServer, OAuth, Resumption
from callgate.models import Retries, Timeouts
from callgate.picking import CascadeStage, PickContext
from callgate.providers.kinds import Count, annotations_of, check_fields, fault_of_call, fault_of_kind
from callgate.runtime.pipeline.options import BadCall

# ------------------------------------------------------------------ option records

RECORDS: dict[type, dict[str, Any]] = {
    Sessions: {},
    Effects: {},
    Suspensions: {},
    Options: {},
    Jobs: {},
    JobRetries: {},
    Schedule: {"tool": "add", "cron": "* * * * *"},
    Timeouts: {},
    Retries: {},
    LargeResults: {},
    Resumption: {},
    McpServer: {"name": "x", "url": "https://tools.example/mcp"},
    OAuth: {"issuer": "https://a.example", "resource": "https://b.example", "verifier": object()},
    PickContext: {},
    Backoff: {},
    CascadeStage: {"scorer": lambda input, tool: 1.0},
}
FREE = {(Options, "validator"), (McpServer, "auth"), (OAuth, "verifier"), (CascadeStage, "scorer")}
"""Fields without a type of their own, or checked where they are used."""
FIELDS = [
    (kind, one.name)
    for kind in RECORDS
    for one in dataclasses.fields(kind)
    if one.init and (kind, one.name) not in FREE
]


class Odd:
    """A value of no setting."""


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=[f"{kind.__name__}.{name}" for kind, name in FIELDS])
def test_a_setting_of_another_type_is_refused_by_name_when_it_is_made(kind: Any, name: str) -> None:
    kind(**RECORDS[kind])
    with pytest.raises((RegistrationError, DefinitionError, HookError, TypeError, ValueError), match=name) as caught:
        kind(**{**RECORDS[kind], name: Odd()})
    assert str(caught.traceback[-1].path) != "<string>", "not an error of Python"


@pytest.mark.parametrize("value", [0, -1, 1.5, "5", True])
@pytest.mark.parametrize("name", ["maximum", "per_user"])
def test_a_number_of_sessions_is_at_least_one(name: str, value: Any) -> None:
    with pytest.raises(RegistrationError, match=f"Sessions: {name} is .*; give a whole number, at least 1 or None"):
        Sessions(**{name: value})


def test_a_record_without_its_check_accepts_everything() -> None:
    """Control: the matrix above sees what ``check_fields`` does."""

    @dataclasses.dataclass
    class Unchecked:
        ttl: float = 1.0

    assert isinstance(Unchecked(ttl=Odd()).ttl, Odd)  # type: ignore[arg-type]


class Sized(typing.Protocol):
    def measure(self) -> int: ...


@pytest.mark.parametrize(
    ("value", "kind", "fits"),
    [
        (1, float, True), (True, float, False), (True, int, False), (1.0, int, False), (None, float | None, True),
        ("a", typing.Sequence[str], False), (["a"], typing.Sequence[str], True), ([1], typing.Sequence[str], False),
        ({"a": 1}, typing.Mapping[str, int], True), ({"a": "b"}, typing.Mapping[str, int], False),
        ((1, 2.0), tuple[int, float], True), ((1,), tuple[int, float], False), ("a", typing.Literal["a", "b"], True),
        ("c", typing.Literal["a", "b"], False), (0, Count, False), (1, Count, True), (len, Callable[[Any], Any], True),
        (lambda: 1, Callable[[Any], Any], False), (lambda *a: 1, Callable[[Any, Any], Any], True),
        (object(), Sized, False), (type("M", (), {"measure": lambda self: 1})(), Sized, True),
        (int, type[int], True), (object(), Any, True), (object(), typing.TypeVar("T"), True),
    ],
)  # fmt: skip
def test_a_value_is_judged_by_its_annotation(value: Any, kind: Any, fits: bool) -> None:
    assert (fault_of_kind(value, kind) is None) is fits


def test_a_fault_says_what_to_give_and_shows_no_value() -> None:
    assert fault_of_kind("s3cret", int | None) == "is of type str; give a whole number or None"
    assert "s3cret" not in str(fault_of_kind("s3cret", list[int]))


# ------------------------------------------------------------------ functions

OBJECT = {"type": "object", "properties": {}}


def right(input: Any, ctx: Any) -> Any: ...
def none() -> Any: ...
def one(input: Any) -> Any: ...
def three(input: Any, ctx: Any, more: Any) -> Any: ...
def keyword(input: Any, *, ctx: Any) -> Any: ...
def swapped(ctx: Any, input: Any) -> Any: ...
def any_number(*args: Any) -> Any: ...
def by_default(input: Any, ctx: Any, more: Any = None) -> Any: ...


class Executor:
    """An executor whose method is the shape under test."""

    schema: typing.ClassVar = {"name": "s", "description": "d", "inputSchema": OBJECT}

    def __init__(self, execute: Any) -> None:
        self.execute = execute


@pytest.mark.parametrize("shape", [none, one, three, keyword, swapped, right, any_number, by_default])
@pytest.mark.parametrize("form", ["record", "executor"])
def test_an_execute_that_cannot_be_called_is_refused_when_it_is_given(shape: Any, form: str) -> None:
    def make() -> ToolRecord:
        if form == "executor":
            return as_tool(Executor(shape))
        return ToolRecord(id="s", description="d", input_schema=OBJECT, execute=shape)

    if shape in (right, any_number, by_default):
        assert make().id == "s"
        return
    with pytest.raises(DefinitionError, match=r"cannot be called with \(input, ctx\): write `async def execute"):
        make()


@pytest.mark.parametrize("given", [("s", "S", "d"), ("s", right), (None, "S"), (None, right, "record")])
def test_a_record_with_its_fields_by_position_is_refused_with_the_line(given: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match=r"write ToolRecord\(id=\.\.\., description=\.\.\."):
        fields: Any = {} if given[0] else {"id": "s", "description": "d", "input_schema": OBJECT}
        ToolRecord(*given, **fields)


@pytest.mark.parametrize(
    "name", ["is_async", "max_threads", "inline", "parallel", "resumable", "to_json", "limits", "hooks"]
)
def test_a_setting_of_a_record_of_another_type_is_refused(name: str) -> None:
    options: Any = {"id": "s", "description": "d", "input_schema": OBJECT, "execute": right, name: Odd()}
    with pytest.raises((DefinitionError, TypeError), match=f"{name} is of type Odd"):
        ToolRecord(**options)


def hook(**methods: Any) -> Any:
    return type("H", (Hook,), {"will_execute": lambda self, ctx: None, **methods})


async def next_first(self: Any, next: Any, ctx: Any) -> Any: ...
async def context_second(self: Any, proceed: Any, context: Any) -> Any: ...


BESIDE = ["filter", "may_see", "approval_for", "note_figures", "note_hydration", "reconcile"]


@pytest.mark.parametrize("made", [True, False], ids=["object", "class"])
@pytest.mark.parametrize(
    "methods",
    [
        *({name: value} for name in BESIDE for value in (True, lambda self: True)),
        {"around_execute": next_first},
        {"around_execute": context_second},
    ],
    ids=lambda one: f"{next(iter(one))}",
)
def test_a_method_beside_the_stages_that_cannot_be_called_is_refused(methods: dict[str, Any], made: bool) -> None:
    kind = hook(**methods)
    name = next(iter(methods))
    with pytest.raises(HookError, match=rf"H\.{name}.*write `(async )?def {name}\(self, "):
        Gate([], [kind() if made else kind])


FUNCTIONS: list[tuple[str, Callable[[Any], object]]] = [
    ("filter", lambda given: Cache(60, filter=given)),
    ("wait", lambda given: Retry(3, wait=given)),
    ("cost", lambda given: Quota("5/minute", cost=given)),
    ("when", lambda given: permit("own", when=given)),
    ("when_input", lambda given: forbid("own", when_input=given)),
    (
        "requires_approval",
        lambda given: ToolRecord(id="s", execute=right, input_schema=OBJECT, requires_approval=given),
    ),
    ("when", lambda given: RequireApproval(when=given)),
    ("on_hydration", lambda given: Options(on_hydration=given)),
    ("refresh_user", lambda given: Suspensions(refresh_user=given)),
    ("resolve", lambda given: Options(resolve=given)),
]


@pytest.mark.parametrize(("name", "make"), FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_a_function_that_takes_other_arguments_is_refused_where_it_is_given(name: str, make: Any) -> None:
    with pytest.raises(
        (HookError, RegistrationError, DefinitionError), match=rf"{name} takes \(\), and is called with \("
    ):
        make(lambda: True)


async def is_async(*given: Any) -> Any:
    return False


def yields(*given: Any) -> Any:
    yield False


class IsAsync:
    async def __call__(self, *given: Any) -> Any:
        return False


PLAIN: dict[str, Callable[[Any], object]] = {
    "cost": lambda given: Quota("5/minute", cost=given),
    "refund_on": lambda given: Quota("5/minute", refund_on=given),
    "by": lambda given: Concurrency(5, by=given),
    "on": lambda given: Retry(3, on=given),
    "on ": lambda given: CircuitBreaker(3, on=given),
    "wait": lambda given: Retry(3, wait=given),
    "note_figures": lambda given: Store(note_figures=given),
}


@dataclass(frozen=True)
class Store:
    note_figures: Callable[[int], None]

    def __post_init__(self) -> None:
        check_fields(self, HookError)


@pytest.mark.parametrize("given", [is_async, partial(is_async, 1), IsAsync(), yields])
@pytest.mark.parametrize("name", PLAIN)
def test_a_function_whose_coroutine_would_count_as_true_is_refused(name: str, given: Any) -> None:
    """An async ``refund_on`` gave back the units of every call, so the limit was never reached."""
    with pytest.raises(HookError, match=f"{name.strip()} (is async; give a plain|yields, so calling it runs nothing)"):
        PLAIN[name](given)


async def test_a_scorer_that_takes_other_arguments_is_refused() -> None:
    @tool(effect="read")
    def add(a: int) -> int:
        """Add."""
        return a

    scorers: list[Any] = [lambda: 1.0, lambda input: 1.0, lambda tool, input: 1.0]
    for scorer in scorers:
        with pytest.raises(TypeError, match=r"def score\(input, tool\)"):
            await pick_tools("add", [add], scorer=scorer)


def test_a_function_without_a_signature_is_not_judged() -> None:
    assert fault_of_call(dict.get, ("self",)) is None or callable(dict.get)
    assert fault_of_call(type, ("a", "b")) is None, "C code has no signature to read"


def test_the_annotations_of_a_function_are_read_once() -> None:
    assert annotations_of(right) is annotations_of(right)


# ------------------------------------------------------------------ ids


@pytest.mark.parametrize("name", ["session_id", "request_id"])
async def test_an_id_that_is_no_text_is_refused_by_its_name(name: str) -> None:
    @tool(effect="read")
    def add(a: int) -> int:
        """Add."""
        return a

    options: Any = {name: 5}
    async with Gate([add]) as gate:
        with pytest.raises(BadCall, match=f"the {name} is of type int; ids are texts"):
            await gate.invoke(add, {"a": 1}, **options)


async def test_a_session_whose_id_is_no_text_is_refused() -> None:
    wrong: Any = 5
    async with Gate([]) as gate:
        with pytest.raises(BadCall, match="the session id is of type int"):
            async with gate.session(wrong):
                raise AssertionError
