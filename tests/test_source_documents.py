"""The samples of the source documents, written in Python, each under the sentence that it proves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from types import FunctionType, ModuleType
from typing import Annotated, Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from callgate import (
    Effects,
    Gate,
    Hook,
    InvokeContext,
    Provide,
    ProviderRegistry,
    Stage,
    ToolCall,
    ToolComponent,
    ToolContext,
    ToolDefinition,
    ToolRecord,
    ToolRegistry,
    User,
    invoke_tool,
    pick_tools,
    tool,
)
from callgate.errors import DefinitionError, RegistrationError, RetryLater, SchemaRefused, StageError
from callgate.hooks import Metrics
from callgate.picking import keyword_overlap
from callgate.threads import InMemoryObservations, InMemoryState, ToolSystem
from callgate.tools import (
    CalculatorTool,
    ClientToolProvider,
    ToolSchema,
    safe_validate_tool_definitions,
    validate_tool_definitions,
    wrap_properties,
)
from callgate.tools.values import FrozenDict, FrozenList
from tests.hooks.stock.records.test_telemetry import Meter
from tests.runtime.models.providers import CHAT, Recorder
from tests.runtime.models.providers import call as model_call


class Input(BaseModel):
    a: float
    b: float


class Output(BaseModel):
    sum: float


class Halves(TypedDict):
    a: float
    b: float


@dataclass
class Sum:
    sum: float


class RateLimit(Hook):
    """The hook of the document, which refuses every call."""

    priority = 100

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        ctx.retry_after(1000, "Rate limit")


async def execute(input: Any, ctx: ToolContext) -> object:
    return Output(sum=input.a + input.b)


def sum_tool(**options: Any) -> ToolRecord:
    given: dict[str, Any] = {
        "id": "sum",
        "name": "Sum Two Numbers",
        "description": "Adds a and b",
        "input_schema": Input,
        "output_schema": Output,
        "hooks_by_stage": {},
        "execute": execute,
    }
    return ToolRecord(**given | options)


def open_gate(*tools: object, **options: Any) -> Gate:
    return Gate(tools, allow_unguarded=True, effects=Effects(durable=False), **options)


# ------------------------------------------------------------------ "A tool has a strong contract shaped by zod schemas"


async def from_mapping(input: Any, ctx: ToolContext) -> object:
    return {"sum": input["a"] + input["b"]}


async def from_object(input: Any, ctx: ToolContext) -> object:
    return Sum(input["a"] + input["b"])


@pytest.mark.parametrize(
    ("schemas", "body"),
    [
        ((Input, Output), execute),
        ((Halves, Sum), from_object),
        ((Halves, None), from_mapping),
        ((Input.model_json_schema(), Output), from_mapping),
        ((Input, Output.model_json_schema()), execute),
    ],
)
async def test_schemas_of_a_record_are_types_or_json_schema(schemas: tuple[Any, Any], body: Any) -> None:
    record = sum_tool(input_schema=schemas[0], output_schema=schemas[1], execute=body)
    assert record.input_schema is not None
    assert set(record.input_schema["properties"]) == {"a", "b"}
    assert await invoke_tool(record, {"a": 1, "b": 2}) == {"sum": 3.0}
    async with open_gate(record) as gate:
        assert (await gate.call(ToolCall(name="sum", arguments={"a": 1, "b": 2}))).output == {"sum": 3.0}
        refused = await gate.call(ToolCall(name="sum", arguments={"a": 1, "b": "two"}))
        assert refused.error is not None
        assert refused.error.code == "invalid_arguments"


async def test_an_output_that_is_no_model_is_checked_against_its_schema() -> None:
    async def wrong(input: Input, ctx: ToolContext) -> object:
        return {"total": 1}

    async with open_gate(sum_tool(execute=wrong)) as gate:
        result = await gate.call(ToolCall(name="sum", arguments={"a": 1, "b": 2}))
    assert not result.ok


# ------------------------------------------------------------------ "Key members" of ToolInvokeContext


async def test_execute_gets_the_members_that_the_document_names_and_shares_data_with_hooks() -> None:
    seen: dict[str, Any] = {}

    class Shares(Hook):
        def will_execute(self, ctx: InvokeContext) -> None:
            ctx.data["from"] = "hook"

        def did_execute(self, ctx: InvokeContext) -> None:
            seen["back"] = ctx.data["back"]

    async def look(input: Input, ctx: ToolContext) -> object:
        ctx.data["back"] = ctx.data["from"]
        seen.update(id=ctx.tool_id, name=ctx.tool_name, input=dict(ctx.input), error=ctx.error, at=ctx.started_at)
        assert ctx.user_id == ctx.user.id
        for name in ("get", "try_get", "respond", "abort", "retry_after"):
            assert callable(getattr(ctx, name))
        return Output(sum=0)

    await invoke_tool(sum_tool(execute=look, hooks=[Shares()]), {"a": 1, "b": 2})
    assert isinstance(seen.pop("at"), datetime)
    assert seen == {
        "id": "sum",
        "name": "Sum Two Numbers",
        "input": {"a": 1, "b": 2},
        "error": None,
        "back": "hook",
    }


# ------------------------------------------------------------------ hooks at tool level


@pytest.mark.parametrize("called", [True, False], ids=["called before", "not called before"])
@pytest.mark.parametrize("hook", [RateLimit, RateLimit()], ids=["class", "object"])
@pytest.mark.parametrize("how", ["set", "append"])
async def test_a_hook_that_is_added_to_a_stage_counts_from_the_next_call(called: bool, hook: Any, how: str) -> None:
    """A policy that is ignored in silence fails open."""
    record = sum_tool(hooks_by_stage={Stage.WILL_ACQUIRE_QUOTA: []})
    hooks: Any = record.hooks_by_stage
    if called:
        await invoke_tool(record, {"a": 1, "b": 2})
    if how == "set":
        hooks[Stage.WILL_ACQUIRE_QUOTA] = [hook]
    else:
        hooks[Stage.WILL_ACQUIRE_QUOTA].append(hook)
    with pytest.raises(RetryLater):
        await invoke_tool(record, {"a": 1, "b": 2})
    hooks.clear()
    assert await invoke_tool(record, {"a": 1, "b": 2}) == {"sum": 3.0}


async def test_a_gate_fixes_the_hooks_of_its_tools() -> None:
    record = sum_tool(hooks_by_stage={Stage.WILL_ACQUIRE_QUOTA: []})
    hooks: Any = record.hooks_by_stage  # taken before: a change through it is refused as well
    hooks[Stage.WILL_ACQUIRE_QUOTA] = [RateLimit]
    async with open_gate(record) as gate:
        for change in (
            lambda: hooks.update({Stage.WILL_ACQUIRE_QUOTA: []}),
            lambda: hooks.setdefault(Stage.WILL_EXECUTE, []),
            lambda: hooks.pop(Stage.WILL_ACQUIRE_QUOTA),
            hooks.popitem,
            hooks.clear,
        ):
            with pytest.raises(TypeError, match=r"gate\.exchange"):
                change()
        with pytest.raises(AttributeError):
            hooks[Stage.WILL_ACQUIRE_QUOTA].clear()
        assert not (await gate.call(ToolCall(name="sum", arguments={"a": 1, "b": 2}))).ok


def changeable(value: object, path: str, seen: set[int]) -> list[str]:
    """The paths of all lists, dicts and sets that public attributes of *value* lead to; no change of them would count."""
    if id(value) in seen or isinstance(value, str | bytes | type | FunctionType | ModuleType):
        return []
    seen.add(id(value))
    if isinstance(value, list | dict | set) and not isinstance(value, FrozenDict | FrozenList):
        return [path]
    found: list[str] = []
    if isinstance(value, Mapping):
        for key, item in value.items():
            found += changeable(item, f"{path}[{key!r}]", seen)
    elif isinstance(value, tuple | FrozenList):
        for number, item in enumerate(value):
            found += changeable(item, f"{path}[{number}]", seen)
    elif is_dataclass(value):
        for item in fields(value):
            if (path, item.name) not in {("record", "plans"), ("record", "validators")}:  # what is made at first use
                found += changeable(getattr(value, item.name), f"{path}.{item.name}", seen)
    return found


@pytest.mark.parametrize("gated", [True, False], ids=["in a gate", "without a gate"])
async def test_no_list_or_mapping_of_a_record_is_ignored_after_the_first_call(gated: bool) -> None:
    record = sum_tool(
        tags={"math"},
        metadata={"provided_by": ["desk"]},
        misfits={"a": 1},
        hooks_by_stage={Stage.WILL_ACQUIRE_QUOTA: []},
    )
    if gated:
        async with open_gate(record) as gate:
            assert changeable(gate.registry.get("sum"), "record", set()) == []
    else:
        await invoke_tool(record, {"a": 1, "b": 2})
        # A change of this list counts; see the test above.
        assert changeable(record, "record", set()) == [f"record.hooks_by_stage[{Stage.WILL_ACQUIRE_QUOTA!r}]"]


def test_a_list_in_a_record_would_be_found() -> None:
    """Control."""
    record = sum_tool(hooks=[])
    object.__setattr__(record, "hooks", [])
    assert changeable(record, "record", set()) == ["record.hooks"]


# ------------------------------------------------------------------ definitions in one mapping, and results


async def test_a_definition_may_be_one_mapping() -> None:
    @tool({"type": "function", "name": "get_temperature", "description": "Get the current temperature for a city"})
    async def temperature(city: str) -> str:
        return city

    assert temperature.definition.name == "get_temperature"
    assert temperature.definition.description == "Get the current temperature for a city"
    assert await temperature("Oslo") == "Oslo"
    with pytest.raises(TypeError, match="name twice"):
        tool({"name": "a"}, name="b")
    with pytest.raises(TypeError, match="no option 'nme'; did you mean 'name'"):
        tool({"nme": "a"})


async def test_a_result_has_the_members_that_the_document_names() -> None:
    async with open_gate(sum_tool()) as gate:
        good = await gate.call(ToolCall(name="sum", arguments={"a": 1, "b": 2}, id="c1"))
        bad = await gate.call(ToolCall(name="sum", arguments={}, id="c2"))
    assert (good.call_id, good.tool_name, good.status, good.output) == ("c1", "sum", "success", {"sum": 3.0})
    assert (bad.call_id, bad.tool_name, bad.status) == ("c2", "sum", "error")
    for result in (good, bad):
        assert result.to_status()["metadata"] == result.metadata
        assert result.metadata["outcome"] == result.outcome.value


# ------------------------------------------------------------------ "Example: Complete Flow" of tool selection

CITY = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}


def temperature_tool(**options: Any) -> Any:
    """The class of the document."""

    @tool(
        {
            "type": "function",
            "name": "get_temperature",
            "description": "Get the current temperature for a city",
            "parameters": CITY,
        },
        **options,
    )
    class GetTemperatureTool:
        def __init__(self, args: dict[str, str]) -> None:
            self.args = args

        async def run(self) -> str:
            return f"19 degrees in {self.args['city']}"

    return GetTemperatureTool


def asking(provider: Any = None) -> Any:
    """A client whose model calls the tool of the document."""
    return CHAT.make(provider or (lambda _: CHAT.whole("", model_call("get_temperature", {"city": "Porto"}))))


async def test_the_complete_flow_runs_tools_without_an_effect() -> None:
    user_input = "What is the temperature in Porto?"
    candidates = await pick_tools(user_input, [temperature_tool(effect="read")], max_candidates=3, min_score=0.1)
    provider = Recorder(lambda _: CHAT.whole("", model_call("get_temperature", {"city": "Porto"})))
    results = await asking(provider).tool_call(
        {"model": "gpt-4", "messages": [{"role": "user", "content": user_input}], "temperature": 0},
        [one.tool for one in candidates],
    )
    assert [await result.tool.run() for result in results] == ["19 degrees in Porto"]
    sent = json.loads(provider.requests[0].content)
    assert (sent["model"], sent["messages"][0]["content"], sent["temperature"]) == ("gpt-4", user_input, 0)


@tool(effect="read")
async def get_temperature(city: str) -> str:
    """Get the current temperature for a city."""
    return city


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        (lambda: [temperature_tool()], 'does not declare effect="read"'),
        (lambda: [temperature_tool(effect="irreversible")], 'does not declare effect="read"'),
        (lambda: [temperature_tool(effect="idempotent")], 'does not declare effect="read"'),
        (lambda: [get_temperature], "is a function"),
        (lambda: open_gate(temperature_tool(effect="read")), "a gate has it"),
        (lambda: [temperature_tool(effect="read", requires_approval=True)], "policies of its own"),
        (lambda: [temperature_tool(effect="read", allowed_roles=["admin"])], "policies of its own"),
        (lambda: [temperature_tool(effect="read", hooks=[RateLimit()])], "policies of its own"),
    ],
    ids=["undeclared", "irreversible", "idempotent", "function", "gate", "approval", "roles", "hooks"],
)
async def test_the_executors_loop_is_refused_for_other_tools_with_the_line_to_write(tools: Any, reason: str) -> None:
    given = tools()
    async with given if isinstance(given, Gate) else open_gate(*given) as gate:
        (result,) = await asking().tool_call("What is the temperature?", given)
        assert result.success
        with pytest.raises(TypeError, match=rf"{reason}.*await gate\.call\(hydrated, user=user\)"):
            await result.tool.run()
        ran = await gate.call(result)  # the line to write
        assert ran.ok or reason == "policies of its own"


@pytest.mark.parametrize(
    ("arguments", "stage"), [("{", "parse"), ('{"city": 1}', "validate"), ('{"city": "nowhere"}', "instantiate")]
)
async def test_a_failed_call_is_a_result_with_the_stage_that_failed(arguments: str, stage: str) -> None:
    @tool({"name": "get_temperature", "description": "Of a city", "parameters": CITY, "effect": "read"})
    class Picky:
        def __init__(self, args: dict[str, str]) -> None:
            if args["city"] == "nowhere":
                raise ValueError("the constructor is the front line for validation")

        async def run(self) -> None: ...

    provider = lambda _: CHAT.whole("", model_call("get_temperature", arguments))
    (result,) = await asking(provider).tool_call("go", [Picky])
    assert (result.success, result.tool, [one.stage for one in result.errors]) == (False, None, [stage])


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"role": "user", "content": "go"},
        {"model": "m"},
        {"messages": [], "tools": []},
        {"messages": "", "stream": 1},
    ],
)
async def test_an_input_that_is_no_request_is_answered_with_the_line_to_write(wrong: Any) -> None:
    with pytest.raises(TypeError, match='"messages": '):
        await asking().tool_call(wrong, [get_temperature])


# ------------------------------------------------------------------ "Input Shaping": redaction and secrets


@pytest.mark.parametrize(
    ("stage", "line"),
    [
        (Stage.WILL_REDACT_INPUT, r"write ctx\.masked_input"),
        (Stage.WILL_INJECT_SECRETS, r"ctx\.bind_provider\(token, secret\)"),
        (Stage.WILL_EXECUTE, "Change it in will_normalize_input"),
    ],
)
async def test_arguments_that_a_policy_allowed_do_not_change_and_the_error_has_the_line_to_write(
    stage: Stage, line: str
) -> None:
    """Contract C15b, C16."""

    class Replaces(Hook):
        def change(self, ctx: InvokeContext) -> None:
            ctx.input = {"a": 3, "b": 4}

    setattr(Replaces, stage.value, Replaces.change)
    with pytest.raises(StageError, match=line):
        await invoke_tool(sum_tool(), {"a": 1, "b": 2}, global_hooks_by_stage={stage: [Replaces()]})


async def test_a_secret_reaches_the_tool_and_no_record() -> None:
    """Contract C15b: the line that the error names."""
    seen: dict[str, Any] = {}

    class Injects(Hook):
        binds = ("billing_key",)

        def will_redact_input(self, ctx: InvokeContext) -> None:
            ctx.masked_input = {"order": "***"}

        def will_inject_secrets(self, ctx: InvokeContext) -> None:
            ctx.bind_provider("billing_key", "s3cret")

        def will_audit(self, ctx: InvokeContext) -> None:
            seen.update(input=dict(ctx.input), masked=dict(ctx.masked_input or {}))

    @tool(effect="read", hooks=[Injects()])
    async def charge(order: str, *, key: Annotated[str, Provide["billing_key"]]) -> str:
        """Charge an order."""
        seen["key"] = key
        return order

    assert await invoke_tool(charge, {"order": "o1"}) == "o1"
    assert seen == {"key": "s3cret", "input": {"order": "o1"}, "masked": {"order": "***"}}


# ------------------------------------------------------------------ "Use in agent loop" of client tools


async def test_the_tools_of_a_client_may_be_awaited_or_read() -> None:
    client_tools = [{"name": "search_database", "description": "Search the client database", "parameters": CITY}]
    provider = ClientToolProvider(tools=client_tools, on_input_required=lambda call, context: {})
    tools = await provider.get_tools()
    assert tools == provider.get_tools()
    assert [one.name for one in tools] == ["search_database"]
    tools.clear()
    assert len(await provider.get_tools()) == 1, "the list is a copy"


# ------------------------------------------------------------------ "Default Scorer" and "Hybrid scorer"


async def test_the_default_scorer_of_the_document_has_a_name_and_is_part_of_a_hybrid() -> None:
    weather = temperature_tool(effect="read", tags=["weather"])
    plain = keyword_overlap("weather in a city", weather)
    assert 0 < plain.score <= 1
    assert plain.reason == "matched keywords in get_temperature"

    async def hybrid(input: Any, one: Any) -> dict[str, Any]:
        return {"score": 0.4 * keyword_overlap(input, one).score + 0.6 * 1.0, "reason": "hybrid (keyword + semantic)"}

    (found,) = await pick_tools("weather in a city", [weather], scorer=hybrid, debug=True)
    assert found.score == pytest.approx(0.4 * plain.score + 0.6)
    (found,) = await pick_tools("weather in a city", [weather], scorer=keyword_overlap)
    assert found.score == plain.score


# ------------------------------------------------------------------ Tool execution of the ToolSystem


class WebSearch:
    """An executor as in the document: a schema, and ``execute(input, context)``."""

    schema = ToolSchema(
        name="WebSearch",
        description="Searches the web",
        input_schema={"type": "object", "required": ["query"], "properties": {"query": {"type": "string"}}},
    )

    async def execute(self, input: dict[str, Any], context: Any) -> dict[str, Any]:
        ids = {name: getattr(context, name) for name in ("thread_id", "trace_id", "user_id", "session_id")}
        return {"status": "success", "output": ids}


async def test_a_tool_system_is_made_of_registry_state_manager_and_observation_manager() -> None:
    registry = ToolRegistry([CalculatorTool(), WebSearch()])
    state, observations = InMemoryState({"t1": ["CalculatorTool", "WebSearch"]}), InMemoryObservations()
    async with ToolSystem(registry, state, observations) as system:
        results = await system.execute_tools(
            [
                {"callId": "c1", "toolName": "CalculatorTool", "arguments": {"expression": "sqrt(16) + 2^3"}},
                {"callId": "c2", "toolName": "WebSearch", "arguments": {"query": "callgate"}},
                {"callId": "c3", "toolName": "WebSearch", "arguments": {}},
                {"callId": "c4", "toolName": "Unknown", "arguments": {}},
            ],
            "t1",
            "trace-1",
            user=User("ann"),
            session_id="s1",
        )
        assert [one.name for one in await system.available_tools("t1")] == ["CalculatorTool", "WebSearch"]
        assert await system.available_tools("t2") == []
    assert [(one.call_id, one.tool_name, one.status) for one in results] == [
        ("c1", "CalculatorTool", "success"),
        ("c2", "WebSearch", "success"),
        ("c3", "WebSearch", "error"),
        ("c4", "Unknown", "error"),
    ]
    assert results[0].output == {"result": 12}
    assert results[1].output == {"thread_id": "t1", "trace_id": "trace-1", "user_id": "ann", "session_id": "s1"}
    assert [one.content.call_id for one in observations.of("t1")] == ["c1", "c2", "c3", "c4"]
    assert all("duration" in one.to_status()["metadata"] for one in results)


async def test_a_tool_system_opens_before_its_first_plan_and_follows_its_registry() -> None:
    registry = ToolRegistry([WebSearch()])
    system = ToolSystem(registry, InMemoryState({"t": ["CalculatorTool", "WebSearch"]}))
    plan = [{"callId": "c", "toolName": "CalculatorTool", "arguments": {"expression": "1 + 1"}}]
    try:
        assert [one.status for one in await system.execute_tools(plan, "t", "x")] == ["error"]
        registry.register(CalculatorTool())
        assert len(await system.available_tools("t")) == 2
        assert [one.status for one in await system.execute_tools(plan, "t", "x")] == ["success"]
        registry.remove("CalculatorTool")
        assert [one.status for one in await system.execute_tools(plan, "t", "x")] == ["error"]
    finally:
        await system.close()


@tool(effect="irreversible")
async def pay(cents: int) -> str:
    """Pay."""
    return "paid"


@pytest.mark.parametrize(
    ("tools", "state", "opens"),
    [
        ([WebSearch()], InMemoryState({}), True),
        ([WebSearch()], None, False),
        ([CalculatorTool()], None, True),
        ([pay], InMemoryState({}), False),
    ],
    ids=["a state manager decides", "an undeclared effect and no decision", "read only", "a declared effect"],
)
async def test_the_gate_of_a_registry_opens_only_where_a_state_manager_or_read_tools_make_it_safe(
    tools: Any, state: Any, opens: bool
) -> None:
    system = ToolSystem(ToolRegistry(tools), state)
    if opens:
        assert await system.execute_tools([], "t", "x") == []
    else:
        with pytest.raises(RegistrationError):
            await system.execute_tools([], "t", "x")
    await system.close()


def test_a_tool_system_of_something_else_is_answered_with_the_line_to_write() -> None:
    wrong: Any = [pay]
    with pytest.raises(TypeError, match=r"ToolSystem\(ToolRegistry\(tools\), state\)"):
        ToolSystem(wrong)


# ------------------------------------------------------------------ "Tool deprecation warnings" and "Usage analytics/metrics"


async def test_a_deprecated_tool_says_so_to_models_the_linter_and_the_metrics() -> None:
    @tool(effect="read", deprecated="use get_forecast")
    async def get_weather(city: str) -> str:
        """The weather in a city."""
        return city

    meter = Meter()
    async with open_gate(get_weather, get_temperature, hooks=[Metrics(meter.provider)]) as gate:
        definition = gate.registry.get("get_weather").definition
        assert definition.description == "The weather in a city. Deprecated: use get_forecast"
        for wire in ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama"):
            assert "Deprecated: use get_forecast" in json.dumps(gate.definitions(wire))
        found = [(one.tool, one.advice) for one in gate.lint() if one.rule == "deprecated"]
        assert found == [("get_weather", "is deprecated: use get_forecast")]
        for name in ("get_weather", "get_temperature"):
            await gate.invoke(name, {"city": "Oslo"})
    assert meter.points("callgate.calls") == {"True success get_weather": 1, "success get_temperature": 1}


@pytest.mark.parametrize("given", [None, False, True, "use b"])
def test_a_definition_keeps_its_deprecation_and_a_catalogue_may_have_only_a_flag(given: Any) -> None:
    read = ToolDefinition.from_dict({"name": "a", "description": "Does it.", "parameters": CITY, "deprecated": given})
    assert ToolDefinition.from_dict(read.to_dict()) == read
    assert (read.deprecated is not None) is bool(given)
    plain = ToolDefinition("a", "Does it.", CITY)
    assert read.binding_digest == plain.binding_digest, "a suspended call outlives the deprecation of its tool"
    assert (read.digest == plain.digest) is not bool(given)


def test_a_deprecation_that_is_no_text_is_refused() -> None:
    wrong: Any = 7
    with pytest.raises(DefinitionError, match="deprecated must be text"):
        ToolDefinition("a", "Does it.", CITY, deprecated=wrong)


def test_a_description_at_its_limit_has_no_room_for_the_note() -> None:
    full = "x" * 65_536
    assert ToolDefinition("a", full, CITY, deprecated="use b").description == full


# ------------------------------------------------------------------ "@Tool decorator" and its accessor


def test_the_weather_tool_of_the_document_is_refused_with_the_correction() -> None:
    """Contract C31: its parameters are a bare map of properties, which a registry would not enforce."""
    parameters = {
        "location": {"type": "string", "description": "The name of the city e.g. San Francisco, CA"},
        "format": {"type": "string", "enum": ["celsius", "fahrenheit"], "description": "The format to return in"},
        "required": ["location", "format"],
    }

    def weather_tool(parameters: Any) -> Any:
        @tool({"type": "function", "name": "get_current_weather", "description": "Weather", "parameters": parameters})
        class WeatherTool:
            async def run(self) -> str:
                return "The current weather in."

        return WeatherTool

    with pytest.raises(SchemaRefused, match="wrap"):
        ToolRegistry([weather_tool(parameters)])
    required: Any = parameters.pop("required")
    made = weather_tool(wrap_properties(parameters, required=required))
    definition = made.get_definition()
    assert (definition.name, made.definition, ToolComponent.get_definition()) == (
        "get_current_weather",
        definition,
        None,
    )
    assert set(definition.parameters["properties"]) == {"location", "format"}
    assert issubclass(made, ToolComponent)


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"parameters": CITY}, None),
        ({}, "there is no schema"),
        ({"allow_no_schema": True}, "no_schema_mode"),
        ({"allow_no_schema": True, "no_schema_mode": "human-approval"}, None),
        ({"allow_no_schema": True, "no_schema_mode": "full"}, None),
        ({"allow_no_schema": True, "no_schema_mode": "read-only"}, "effect='read'"),
    ],
    ids=["a schema", "none", "no mode", "human-approval", "full", "read-only without an effect"],
)
def test_a_schema_is_required_unless_a_mode_says_what_happens_without_it(given: Any, refused: str | None) -> None:
    """Contract 13, 14: "registration will fail with a clear error asking the author to provide a schema"."""
    if refused is None:
        assert ToolDefinition("get_weather", "Weather", **given).name == "get_weather"
    else:
        with pytest.raises(DefinitionError, match=refused):
            ToolDefinition("get_weather", "Weather", **given)


# ------------------------------------------------------------------ "Validation Example" and "Argument Validation"


def test_the_validation_examples_of_client_tools_answer_as_the_document_says() -> None:
    parameters = {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "Search query"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    client_tools: Any = [{"name": "search_database", "description": "Search", "parameters": parameters}]
    assert [one.name for one in validate_tool_definitions(client_tools)] == ["search_database"]
    assert safe_validate_tool_definitions(client_tools)["success"]
    failed = safe_validate_tool_definitions([{"name": "bad name!", "description": "", "parameters": {}}])
    assert (failed["success"], bool(failed.get("errors"))) == (False, True)
    with pytest.raises(DefinitionError, match="Duplicate tool names: search_database"):
        validate_tool_definitions(client_tools * 2)
    provider = ClientToolProvider(tools=client_tools, on_input_required=lambda call, context: {})

    def checked(arguments: Any) -> Any:
        function = {"name": "search_database", "arguments": json.dumps(arguments)}
        return provider.validate_tool_arguments({"id": "call-123", "type": "function", "function": function})

    assert checked({"query": "test", "limit": 10})["valid"]
    found = checked({"abc": 1, "limit": 2.5})
    assert found["errors"][:3] == [
        "Missing required parameter: query",
        "Unknown parameter: abc",
        "Parameter limit must be an integer, got: 2.5",
    ]
    assert checked({"query": 7})["errors"] == ["Parameter query has wrong type: expected string, got number"]


# ------------------------------------------------------------------ "Writing a Hook" and "Invoking a Tool"


class Limiter:
    """The limiter that the hook of the document takes from its providers."""

    def __init__(self, room: int) -> None:
        self.room, self.held, self.most = room, 0, 0

    async def try_acquire(self, user: str) -> bool:
        if self.held >= self.room:
            return False
        self.held += 1
        self.most = max(self.most, self.held)
        return True

    async def release(self, user: str) -> None:
        self.held -= 1


class RateLimitHook:
    """The hook of the document, line by line; it need not inherit."""

    def priority(self) -> int:
        return 100

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        limiter = ctx.get(Limiter)
        ok = await limiter.try_acquire(ctx.user.id)
        if not ok:
            ctx.retry_after(1000, "Rate limit")

    async def did_release_quota(self, ctx: InvokeContext) -> None:
        limiter = ctx.try_get(Limiter)
        if limiter is not None:
            await limiter.release(ctx.user.id)


@pytest.mark.parametrize(("room", "runs"), [(1, True), (0, False)])
async def test_the_invocation_of_the_document_runs_and_gives_back_what_it_took(room: int, runs: bool) -> None:
    """Contract 83, C1a, C1e: listed under the acquire stage alone, the hook releases exactly what it acquired."""
    limiter, registry = Limiter(room), ProviderRegistry()
    registry.register_singletons({Limiter: limiter})

    async def invoke() -> object:
        return await invoke_tool(
            tool=sum_tool(),
            raw_input={"a": 1, "b": 2},
            session_id="sess-123",
            request_id="req-456",
            registry=registry,
            resolve=lambda cls: cls(),
            global_hooks_by_stage={Stage.WILL_ACQUIRE_QUOTA: [RateLimitHook]},
            user=User("user-1"),
        )

    if runs:
        assert await invoke() == {"sum": 3.0}
    else:
        with pytest.raises(RetryLater):
            await invoke()
    assert (limiter.held, limiter.most) == (0, room)
