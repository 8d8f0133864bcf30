"""``@tool`` and ``as_tool`` on functions and executors: design 4; contract 10-14, 71, 81, C11."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import inspect
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator
from typing import Annotated, Any, ClassVar

import pytest
from dependency_injector import containers, providers

from callgate.errors import DefinitionError, ToolError
from callgate.providers.provide import Provide
from callgate.tools.calls import ErrorInfo, Outcome, ToolResult
from callgate.tools.context import ToolContext
from callgate.tools.declaring.declare import FunctionTool, as_tool, tool
from callgate.tools.declaring.executor import ToolSchema
from callgate.tools.definition import Effect, NoSchemaMode, ToolAnnotations, ToolDefinition
from callgate.tools.limits import Limits
from callgate.tools.record import Style, ToolRecord

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


class Db:
    pass


class App(containers.DeclarativeContainer):
    db = providers.Factory(Db)


@dataclasses.dataclass
class Receipt:
    id: str


@tool(effect="irreversible", key=("order_id",), parallel=False, deadline=5)
async def refund(order_id: str, *, db: Annotated[Db, Provide[App.db]], ctx: ToolContext) -> Receipt:
    """Refund an order."""
    return Receipt(order_id)


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


# ------------------------------------------------------------------ functions


def test_a_function_stays_a_plain_callable() -> None:
    """Design 4."""
    assert add(1, b=2) == 3
    assert add.__name__ == "add"
    assert add.__doc__ == "Add two numbers."
    assert add.__module__ == __name__
    assert list(inspect.signature(add).parameters) == ["a", "b"]
    assert add.__wrapped__(1) == 2
    assert repr(add) == "<tool 'add' of add>"
    context: Any = None
    assert asyncio.run(refund("7", db=Db(), ctx=context)) == Receipt("7")


def test_frameworks_tell_an_async_tool_from_a_plain_one() -> None:
    """Starlette and FastAPI look at ``__call__``; ``inspect`` marks callable objects from Python 3.12 on."""

    def is_async_callable(call: Any) -> bool:
        return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(call.__call__)

    async def parts() -> AsyncIterator[int]:
        yield 1

    assert is_async_callable(refund)
    assert not is_async_callable(add)
    assert inspect.iscoroutinefunction(inspect.unwrap(refund))
    assert inspect.iscoroutinefunction(refund) is (sys.version_info >= (3, 12))
    assert inspect.isasyncgenfunction(inspect.unwrap(tool(parts)))


def test_the_definition_comes_from_name_docstring_and_signature() -> None:
    definition = add.get_definition()
    assert definition is add.definition is add.record.definition
    assert definition.name == "add"
    assert definition.description == "Add two numbers."
    assert definition.parameters == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert definition.output_schema == {"type": "integer"}
    assert definition.effect is None


def test_the_record_says_how_to_run_it() -> None:
    """Contract 81."""
    record = refund.record
    assert record.style is Style.KEYWORDS
    assert record.is_async
    assert record.execute is refund.__wrapped__
    assert [item.name for item in record.injected] == ["db"]
    assert record.context_parameter == "ctx"
    assert record.parallel is False
    assert record.deadline == 5
    assert record.definition.key == ("order_id",)
    assert record.to_json is not None
    assert record.to_json(Receipt("7")) == {"id": "7"}
    assert record.from_json is not None
    assert record.from_json({"id": "7"}) == Receipt("7")
    assert add.record.is_async is False


def test_every_option_reaches_the_definition_or_the_record() -> None:
    """Contract 9, 10."""
    hook, limits = object(), Limits()
    options: dict[str, Any] = {
        "name": "other",
        "title": "Other",
        "description": "Other words.",
        "output_schema": {"type": "number"},
        "effect": "keyed",
        "key": ["a"],
        "tags": ["x"],
        "safe": False,
        "safety": {"threat": "high"},
        "allowed_roles": ["clerk"],
        "capabilities": {"batch": True},
        "annotations": ToolAnnotations(destructive_hint=True),
        "examples": [{"input": {"a": 1}}],
        "version": "2",
        "strict": True,
        "provider_schema": {"type": "object"},
        "tolerant": False,
        "metadata": {"team": "x"},
        "deadline": 1.5,
        "hard_deadline": True,
        "inline": True,
        "max_threads": 2,
        "parallel": False,
        "limits": limits,
        "hooks": [hook],
        "hooks_by_stage": {"will_authorize": [hook]},
    }
    record = tool(**options)(lambda a: a).record
    shown = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    shown |= {field.name: getattr(record.definition, field.name) for field in dataclasses.fields(record.definition)}
    shown |= {name: list(shown[name]) for name in ("key", "tags", "allowed_roles", "examples", "hooks")}
    assert {name: shown[name] for name in options} == options


def test_an_explicit_schema_is_kept_verbatim() -> None:
    """Contract 11."""

    @tool(parameters=SCHEMA)
    async def function(a: int) -> None: ...

    assert function.definition.parameters == SCHEMA
    assert tool(parameters=None)(add.__wrapped__).definition.parameters == add.definition.parameters


def test_an_output_schema_may_be_given_or_declined() -> None:
    @tool(output_schema=False)
    async def declined() -> Receipt: ...  # type: ignore[empty-body]

    @tool(output_schema={"type": "object"})
    async def own() -> Receipt: ...  # type: ignore[empty-body]

    assert declined.definition.output_schema is None
    assert declined.record.to_json is not None
    assert own.definition.output_schema == {"type": "object"}


def test_without_a_schema_a_function_has_to_opt_out_twice() -> None:
    """Contract 13, 14, C9."""

    def anything(**values: Any) -> None: ...

    with pytest.raises(DefinitionError, match="kwargs"):
        tool(anything)
    with pytest.raises(DefinitionError, match="no_schema_mode"):
        tool(allow_no_schema=True)(anything)
    found = tool(allow_no_schema=True, no_schema_mode="full")(anything)
    assert not found.definition.has_schema
    assert found.definition.no_schema_mode is NoSchemaMode.FULL


def test_a_streaming_tool_says_so() -> None:
    """Contract 10."""

    @tool(capabilities={"batch": False})
    async def parts(n: int) -> AsyncIterator[int]:
        yield n

    assert parts.record.streams
    assert parts.record.is_async
    assert parts.definition.capabilities == {"streaming": True, "batch": False}
    assert parts.definition.output_schema == {"type": "array", "items": {"type": "integer"}}


def test_mistakes_at_the_decorator_are_named() -> None:
    def function(a: int) -> None: ...

    with pytest.raises(TypeError, match="did you mean 'effect'"):
        tool(efect="read")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="options by name"):
        tool("name")  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="already"):
        tool(add)
    with pytest.raises(DefinitionError, match="<lambda>"):
        tool(lambda a: a)
    with pytest.raises(DefinitionError, match="one of 'read'"):
        tool(effect="write")(function)  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="above 0"):
        tool(deadline=0)(function)
    with pytest.raises(DefinitionError, match="at least 1"):
        tool(max_threads=0)(function)


# ------------------------------------------------------------------ as_tool


def test_as_tool_takes_what_is_a_tool() -> None:
    async def bare(a: int) -> int:
        """Bare."""
        return a

    record = as_tool(bare)
    assert record.id == "bare"
    assert record.definition.description == "Bare."
    assert as_tool(record) is record
    assert as_tool(bare) is record
    assert as_tool(add) is add.record


def test_the_record_of_a_function_lives_as_long_as_anybody_needs_it() -> None:
    def make() -> weakref.ref[Any]:
        def passing(a: int) -> None: ...

        as_tool(passing)
        return weakref.ref(passing)

    found = make()
    gc.collect()
    assert found() is None


def test_bound_methods_and_callable_objects_are_tools() -> None:
    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        async def order(self, item: str) -> str:
            """Order something."""
            return f"{item} from {self.name}"

    class Greeter:
        async def __call__(self, who: str) -> str:
            """Greet."""
            return f"hello {who}"

    record = as_tool(Shop("here").order)
    assert record.id == "order"
    assert list((record.definition.parameters or {})["properties"]) == ["item"]
    assert asyncio.run(record.execute(item="tea")) == "tea from here"
    greeter = as_tool(Greeter())
    assert greeter.id == "Greeter"
    assert greeter.is_async
    assert asyncio.run(greeter.execute(who="you")) == "hello you"


def test_what_is_no_tool_is_refused_with_the_way_to_one() -> None:
    class Runs:
        async def run(self) -> None: ...

    class Nothing:
        pass

    class Executor:
        schema: ClassVar[Any] = {"name": "x", "inputSchema": SCHEMA}

        def execute(self, input: Any, context: Any) -> Any: ...

    @tool(parameters=SCHEMA)
    class Decorated:
        async def run(self) -> None: ...

    with pytest.raises(DefinitionError, match="decorate it with @tool"):
        as_tool(Runs)
    with pytest.raises(DefinitionError, match="give the class"):
        as_tool(Decorated())
    with pytest.raises(DefinitionError, match="give an instance"):
        as_tool(Executor)
    with pytest.raises(DefinitionError, match="partial"):
        as_tool(functools.partial(lambda a: a, 1))
    with pytest.raises(TypeError, match="is no tool"):
        as_tool(Nothing)
    for other in (5, "add", None, ToolDefinition("a", "b", SCHEMA)):
        with pytest.raises(TypeError, match="a tool is"):
            as_tool(other)


# ------------------------------------------------------------------ executors


class Search:
    """The documents' IToolExecutor."""

    schema = ToolSchema("WebSearch", "Searches.", SCHEMA, {"type": "object"}, ({"input": {"a": 1}},))

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def execute(self, input: dict[str, Any], context: Any) -> Any:
        return self.answer


def test_an_executor_becomes_a_record() -> None:
    """Contract 71."""
    record = as_tool(Search(None))
    assert record.style is Style.RECORD
    assert record.is_async
    assert record.definition.name == "WebSearch"
    assert record.definition.parameters == SCHEMA
    assert record.definition.output_schema == {"type": "object"}
    assert list(record.definition.examples) == [{"input": {"a": 1}}]


def test_one_executor_has_one_record_and_two_have_two() -> None:
    one, other = Search(1), Search(1)
    record = as_tool(one)
    assert as_tool(one) is record
    assert as_tool(other) is not record

    @dataclasses.dataclass(frozen=True)
    class Equal:
        schema: Any = Search.schema

        def execute(self, input: Any, context: Any) -> Any: ...

    record = as_tool(Equal())
    assert as_tool(Equal()) is not record


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        ({"a": 1}, {"a": 1}),
        (None, None),
        ({"status": "success", "output": {"a": 1}}, {"a": 1}),
        ({"status": "success", "output": 1, "metadata": {"duration": 3}}, 1),
        ({"status": "success", "order": 7}, {"status": "success", "order": 7}),
        ({"status": "open"}, {"status": "open"}),
        (ToolResult("c", "t", Outcome.SUCCESS, output=5), 5),
    ],
)
async def test_an_executors_answer_is_its_output_or_a_result_that_holds_it(answer: Any, output: Any) -> None:
    """Contract 76, C11."""
    assert await as_tool(Search(answer)).execute({}, None) == output


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"status": "error", "error": "Calculation failed: x"}, "Calculation failed: x"),
        ({"status": "error"}, "The tool failed."),
        (ToolResult("c", "t", Outcome.ERROR, error=ErrorInfo("e", "No luck.")), "No luck."),
        (ToolResult("c", "t", Outcome.ERROR), "The tool failed."),
    ],
)
async def test_an_executors_error_result_is_raised_with_its_text(answer: Any, text: str) -> None:
    """Contract 77, C11."""
    with pytest.raises(ToolError) as caught:
        await as_tool(Search(answer)).execute({}, None)
    assert caught.value.public == text


def test_a_plain_executor_and_one_with_a_definition() -> None:
    class Plain:
        schema: ClassVar[Any] = {"name": "plain", "description": "Plain.", "inputSchema": SCHEMA}

        def execute(self, input: Any, context: Any) -> Any:
            return {"status": "success", "output": input}

    class Defined(Plain):
        definition = ToolDefinition("defined", "Defined.", SCHEMA, effect=Effect.READ)

    record = as_tool(Plain())
    assert not record.is_async
    assert record.execute({"a": 1}, None) == {"a": 1}
    assert as_tool(Defined()).definition is Defined.definition


def test_a_tool_schema_is_read_from_objects_and_mappings_and_shown_in_the_documents_words() -> None:
    """Contract 71."""
    wire = {"name": "x", "description": "X.", "inputSchema": SCHEMA, "outputSchema": {}, "examples": [1]}
    schema = ToolSchema.of(wire)
    assert schema.to_dict() == wire
    assert ToolSchema.of(schema) is schema
    assert ToolSchema.from_definition(schema.to_definition()).to_dict() == wire
    assert ToolSchema("x", None, SCHEMA).to_dict() == {"name": "x", "inputSchema": SCHEMA}
    with pytest.raises(DefinitionError, match="no name"):
        ToolSchema.of({})


# ------------------------------------------------------------------ what is loaded


def test_pydantic_is_loaded_only_when_a_tool_needs_it() -> None:
    """performance.md 7."""
    code = (
        "import sys\n"
        "sys.modules['fastapi'] = None\n"  # dependency-injector imports it where it is installed, and so pydantic
        "from callgate.tools.declaring.declare import tool\n"
        "from callgate.tools.calculator import CalculatorTool\n"
        "from callgate.tools.registry import ToolRegistry\n"
        "@tool(parameters={'type': 'object'})\n"
        "class T:\n"
        "    async def run(self): ...\n"
        "@tool(parameters={'type': 'object', 'properties': {'a': {}}, 'required': ['a']}, output_schema=False)\n"
        "async def f(a: int) -> dict[str, int]: ...\n"
        "ToolRegistry().add_inline(CalculatorTool())\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'simpleeval', 'docstring_parser'}, loaded\n"
        "assert 'pydantic._internal._generate_schema' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_function_tool_is_generic_in_its_parameters_and_result() -> None:
    assert isinstance(add, FunctionTool)
    assert isinstance(add.record, ToolRecord)
    assert FunctionTool.__parameters__  # type: ignore[attr-defined]
