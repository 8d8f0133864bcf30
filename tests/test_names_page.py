"""The page "Names in the source documents": every counterpart exists, and no name of the documents is missing."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from importlib import import_module
from typing import Any

import pytest

import callgate
import callgate.hooks
import callgate.tools
from callgate import Gate, Hook, ToolCall, ToolRecord, ToolRegistry, User
from callgate.hooks.tool_view import ToolView
from callgate.picking import keyword_overlap
from callgate.providers.guesses import camel, snake
from callgate.threads import ExecutionContext, InMemoryObservations, InMemoryState, ToolSystem
from callgate.tools import ClientToolProvider
from tests.runtime.models.providers import CHAT
from tests.test_packaging import ROOT

PAGE = (ROOT / "docs" / "reference" / "names.md").read_text("utf-8")
ROWS = re.findall(r"^\| (`.*?`) \| `(callgate[\w.]*)` \|", PAGE, re.MULTILINE)

DOCUMENTS = """
    @Tool ToolComponent ToolComponent.run getDefinition toolMetadata ToolDefinition ToolClass.definition
    ToolClass.validator allowNoSchema noSchemaMode providerSchema HydrationResult toolCall mapToolDefinitionToTool
    convertToDefinition parseToolArguments pickTools PickResult defaultScorer keywordOverlap getTools ToolSchema IToolExecutor ToolRegistry addInline
    addValidated StateManager StateManager.isToolEnabled ToolSystem executeTools ParsedToolCall ExecutionContext
    ObservationManager TOOL_EXECUTION CalculatorTool ToolResult ToolCall ClientToolProvider validateToolDefinitions
    safeValidateToolDefinitions ToolDefinitionSchema FunctionParameters JsonSchemaProperty onInputRequired ToolRecord
    hooksByStage Tool providedBy preHook postHook ToolResolveFn validateTool invokeTool globalHooksByStage
    ToolInvokeContext bindProvider bindProviders get tryGet respond abort retryAfter ControlRespond ControlAbort
    ControlRetryAfter ToolHook ToolHookStage toolPreStages toolPostStages toolErrorStages sortForStage
    collectHooksForStage wrapWithAround willBindProvidersStage ProviderRegistry registerSingletons
    registerSessionProviders getAllSingletons sessionMap
""".split()


def found(path: str) -> Any:
    """The object at a dotted path; a field of a dataclass, or an attribute of a class or of its metaclass, counts."""
    parts = path.split(".")
    module = next(
        parts[:size] for size in (2, 1) if (parts[1].islower() and size == 2 and parts[1] in FACES) or size == 1
    )
    value: Any = import_module(".".join(module))
    for name in parts[len(module) :]:
        if dataclasses.is_dataclass(value) and name in {one.name for one in dataclasses.fields(value)}:
            return value
        value = getattr(value, name) if not hasattr(type(value), name) else getattr(type(value), name)
    return value


FACES = {"errors", "hooks", "jobs", "models", "picking", "stores", "testing", "threads", "tools"}


@pytest.mark.parametrize("path", sorted({path for _, path in ROWS}))
def test_every_counterpart_exists(path: str) -> None:
    assert found(path) is not None


def test_no_name_of_the_documents_is_missing() -> None:
    named = {re.split(r"[({ ]", name)[0] for cell, _ in ROWS for name in re.findall(r"`(.*?)`", cell)}
    assert set(DOCUMENTS) - named == set()
    assert named - set(DOCUMENTS) == set()


def test_each_row_has_a_counterpart() -> None:
    assert len(ROWS) == len(re.findall(r"^\| `", PAGE, re.MULTILINE))


# ---------------------------------------------------------------------- the lines of the page run


class _Filled(ast.NodeTransformer):
    """Puts the value of a sample where a line has ``...``: by keyword, or by the key of a mapping."""

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        node.value = self._value(node.arg, node.value)
        return self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        names = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
        node.values = [self._value(name, value) for name, value in zip(names, node.values, strict=True)]
        return self.generic_visit(node)

    @staticmethod
    def _value(name: object, value: ast.expr) -> ast.expr:
        if isinstance(value, ast.Constant) and value.value is ...:
            return ast.Subscript(ast.Name("SAMPLE", ast.Load()), ast.Constant(str(name)), ast.Load())
        return value


def lines() -> list[str]:
    """Every line of the page that calls or reads something."""
    found = [span for row in ROWS_IN_FULL for span in re.findall(r"`([^`]*)`", row[2])]
    return [span for span in dict.fromkeys(found) if "(" in span or re.fullmatch(r"[a-z_]+\.\w+", span)]


ROWS_IN_FULL = [row for line in PAGE.splitlines() if len(row := re.split(r" \| |^\| ", line.rstrip("| "))[1:]) == 3]
PARAMETERS = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}


async def execute(input: Any, ctx: Any) -> object:
    return {"city": "Porto"}


SAMPLE: dict[str, Any] = {
    "name": "get_weather",
    "id": "get_weather",
    "description": "The weather in a city",
    "parameters": PARAMETERS,
    "input_schema": PARAMETERS,
    "arguments": {"city": "Porto"},
    "execute": execute,
    "hooks_by_stage": {},
    "tags": ["weather"],
    "provided_by": "weather desk",
    "resolve": lambda kind: kind(),
    "model": "a-model",
    "messages": [{"role": "user", "content": "the weather in Porto"}],
    "key": object(),
    "output": {"result": 1},
    "pre_hook": execute,
    "post_hook": execute,
}


async def ran(line: str) -> Any:
    """The value of one line, in a scene that has the names that the page uses."""
    seen: dict[str, Any] = {}

    class Looks(Hook):
        def will_execute(self, ctx: Any) -> None:
            seen["ctx"] = ExecutionContext.current()

    record = ToolRecord(
        id="get_weather",
        description="Weather",
        input_schema=PARAMETERS,
        execute=execute,
        effect="read",
        hooks=[Looks()],
    )
    gate = Gate([record])
    state = InMemoryState({"t1": ["get_weather"]})
    call = ToolCall(id="c1", name="get_weather", arguments={"city": "Porto"})
    async with gate, CHAT.make(lambda _: CHAT.whole("", ("get_weather", {"city": "Porto"}))) as client:
        system = ToolSystem(gate, state, InMemoryObservations())
        calls = [{"callId": "c1", "toolName": "get_weather", "arguments": {"city": "Porto"}}]
        await system.execute_tools(calls, "t1", "x")
        scene: dict[str, Any] = {
            **{name: getattr(callgate, name) for name in dir(callgate) if not name.startswith("_")},
            **{name: getattr(callgate.hooks, name) for name in ("by_stage", "collect_hooks_for_stage")},
            **{name: getattr(callgate.tools, name) for name in ("validate_tool",)},
            "ExecutionContext": ExecutionContext,
            "ToolSystem": ToolSystem,
            "keyword_overlap": keyword_overlap,
            "SAMPLE": SAMPLE,
            "gate": gate,
            "client": client,
            "state": state,
            "system": system,
            "call": call,
            "calls": calls,
            "thread_id": "t1",
            "trace_id": "x",
            "name": "get_weather",
            "ctx": seen["ctx"],
            "registry": ToolRegistry([record]),
            "observations": InMemoryObservations(),
            "sum_tool": record,
            "tools": [record],
            "definitions": [record.definition],
            "input": "weather",
            "user": User("ann"),
            "arguments": {"city": "Porto"},
            "result": await gate.call(call),
            "hook": Looks(),
            "hooks": [Looks()],
            "providers": callgate.ProviderRegistry(),
            "resolve": lambda kind: kind(),
            "provider": ClientToolProvider(tools=[], on_input_required=lambda call, context: {}),
        }
        tree = ast.parse(line.removeprefix("@"), mode="eval")
        filled = ast.fix_missing_locations(_Filled().visit(tree))
        value: Any = eval(compile(filled, line, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), scene)
        value = await value if inspect.isawaitable(value) else value
        return value(execute_typed) if line.startswith("@") else value


async def execute_typed(city: str) -> str:
    """The weather."""
    return city


def test_the_page_has_lines_to_run() -> None:
    assert len(lines()) >= 25


@pytest.mark.parametrize("line", lines())
async def test_each_line_of_the_page_runs(line: str) -> None:
    await ran(line)


async def test_a_line_with_a_misspelt_name_does_not_run() -> None:
    """Control."""
    with pytest.raises(TypeError, match="max_candidate'"):
        await ran("await pick_tools(input, tools, max_candidate=3)")


@pytest.mark.parametrize("name", ["pre_hook", "post_hook", "provided_by"])
async def test_a_refused_name_is_answered_with_the_line_of_the_page(name: str) -> None:
    with pytest.raises(TypeError, match="write ToolRecord"):
        await ran(f"ToolRecord(id=..., execute=..., {name}=...)")


# ---------------------------------------------------------------------- the names of the documents, written literally


def rows() -> list[tuple[str, str]]:
    """Each name of the documents with its counterpart."""
    found = [(name, path) for cell, path in ROWS for name in re.findall(r"`(.*?)`", cell)]
    return [(re.split(r"[({ ]", name)[0], path) for name, path in found]


WORDS = [(name, path) for name, path in rows() if re.fullmatch(r"\w+", name)]
PARAMETERS_OF = {"onInputRequired", "globalHooksByStage", "allowNoSchema", "noSchemaMode"}
"""Names of the documents that are parameters here."""
_FACES = {"callgate", *(f"callgate.{one}" for one in FACES)}
IMPORTED = [(name, path) for name, path in WORDS if path.rpartition(".")[0] in _FACES]
ATTRIBUTES = [(name, path) for name, path in WORDS if (name, path) not in IMPORTED]
SPELLED_ALIKE = {"get", "respond", "abort"}
OTHER_WORDS = {
    "providedBy",
    "preHook",
    "postHook",
    "ToolResolveFn",
    "convertToDefinition",
    "parseToolArguments",
    "tryGet",
}
"""Names without a counterpart of the same words: the page, or the refusal of the keyword, says what to write."""


@pytest.mark.parametrize(("name", "path"), [one for one in IMPORTED if one[0] not in PARAMETERS_OF])
def test_an_imported_name_of_the_documents_works_or_is_answered_with_its_counterpart(name: str, path: str) -> None:
    face, _, counterpart = path.rpartition(".")
    if hasattr(callgate, name):
        return
    with pytest.raises(ImportError, match=rf"write: from {face} import .*{counterpart}"):
        exec(f"from callgate import {name}")


@pytest.mark.parametrize(
    ("name", "path"),
    [one for one in ATTRIBUTES if one[0] not in SPELLED_ALIKE | OTHER_WORDS and "Client." not in one[1]],
)
def test_an_attribute_of_the_documents_is_answered_with_its_counterpart(name: str, path: str) -> None:
    owner, _, attribute = path.rpartition(".")
    expected = attribute if name == "toolMetadata" else snake(name)
    with pytest.raises(AttributeError, match=rf"write:? {expected}"):
        getattr(found(owner), name)


@pytest.mark.parametrize(
    "kind",
    [
        callgate.ProviderRegistry, ToolRegistry, ToolSystem, ClientToolProvider, Gate, callgate.InvokeContext, ToolRecord,
        callgate.ToolResult, callgate.ToolDefinition, ToolView,
    ],
)  # fmt: skip
def test_each_attribute_of_a_class_is_found_by_its_camel_case_and_offered_by_its_own_name_alone(kind: Any) -> None:
    names = [name for name in dir(kind) if "_" in name and not name.startswith("_") and hasattr(kind, name)]
    for name in names:
        if camel(name) != name:
            with pytest.raises(AttributeError, match=rf"write: {name}|write: result\."):
                getattr(kind, camel(name))


def test_the_objects_offer_no_guess() -> None:
    for made in (callgate.ProviderRegistry(), ToolRegistry(), Gate(), ClientToolProvider([], lambda call, ctx: {})):
        assert [name for name in dir(made) if not hasattr(made, name)] == []
        assert [name for name in dir(type(made)) if not hasattr(type(made), name)] == []


# ---------------------------------------------------------------------- options and mappings


OPTIONS = {"maxCandidates": 1, "minScore": 0.0, "allowUnsafe": True, "timeoutMs": 500, "debug": True}


@pytest.mark.parametrize("form", ["mapping", "keywords", "snake case", "both"])
async def test_pick_tools_takes_the_options_object_of_the_documents(form: str) -> None:
    pick: Any = callgate.pick_tools
    tools = [
        ToolRecord(id=name, description="Weather", input_schema=PARAMETERS, execute=execute) for name in ("a", "b")
    ]
    if form == "mapping":
        found = await pick("weather", tools, OPTIONS)
    elif form == "keywords":
        found = await pick("weather", tools, **OPTIONS)
    elif form == "snake case":
        found = await pick("weather", tools, {snake(name): value for name, value in OPTIONS.items()})
    else:
        found = await pick("weather", tools, {"minScore": 0.0, "debug": True}, max_candidates=1)
    assert (len(found), found[0].provenance is not None) == (1, True)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"maxCandidate": 3}, "did you mean 'max_candidates'"),
        ({"max": 3}, "has no option 'max'"),
        ({"maxCandidates": 1, "max_candidates": 2}, "got 'max_candidates' twice"),
        (5, "are a mapping, not int; write max_candidates=3"),
    ],
)
async def test_an_unknown_option_of_pick_tools_is_answered(given: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        await callgate.pick_tools("weather", [], given)


@pytest.mark.parametrize("form", ["mapping", "keywords"])
async def test_invoke_tool_as_the_documents_call_it_is_answered_with_the_line(form: str) -> None:
    record = ToolRecord(id="a", description="A", input_schema=PARAMETERS, execute=execute)
    options = {"rawInput": {"city": "Porto"}, "sessionId": "s", "globalHooksByStage": {}}
    line = r"write invoke_tool\(tool=\.\.\., raw_input=\.\.\., session_id=\.\.\., global_hooks_by_stage=\.\.\.\)"
    call: Any = callgate.invoke_tool
    with pytest.raises(TypeError, match=line):
        await (call({"tool": record, **options}) if form == "mapping" else call(record, **options))
    with pytest.raises(TypeError, match="has no option 'raw_inputs'; did you mean 'raw_input'"):
        await call(record, raw_inputs={})


@pytest.mark.parametrize("stage", callgate.Stage)
def test_a_stage_is_found_by_the_name_of_the_documents_and_of_its_method(stage: callgate.Stage) -> None:
    assert getattr(callgate.Stage, stage.value) is getattr(callgate.Stage, camel(stage.value)) is stage
    assert len(callgate.Stage) == 33


def test_results_and_schemas_as_mappings_answer_attributes_with_the_line() -> None:
    provider = ClientToolProvider([], lambda call, ctx: {})
    checked: Any = provider.validate_tool_arguments({"id": "c", "function": {"name": "x", "arguments": "{}"}})
    found: Any = callgate.tools.safe_validate_tool_definitions([])
    schema: Any = callgate.tools.ToolDefinitionSchema
    for value, name, line in (
        (checked, "valid", "write result['valid']"),
        (checked, "errors", r"result.get\('errors'\)"),
        (found, "success", "write result['success']"),
        (schema, "parse", r"write validate_tool_definitions\(\[definition\]\)\[0\]"),
        (schema, "safeParse", "write safe_validate_tool_definitions"),
    ):
        with pytest.raises(AttributeError, match=line.replace("[", r"\[") if "\\" not in line else line):
            getattr(value, name)
    assert isinstance(schema, dict)
    assert "data" in found


def test_a_codec_translates_tools_as_well_as_definitions() -> None:
    record = ToolRecord(id="a", description="A", input_schema=PARAMETERS, execute=execute)
    made = [callgate.codec("ollama").translate([one]).request for one in (record, record.definition)]  # type: ignore[list-item]
    assert made[0] == made[1]
    wrong: Any = type("W", (), {})
    with pytest.raises(TypeError, match="is not decorated with @tool"):
        callgate.codec("ollama").translate([wrong])
