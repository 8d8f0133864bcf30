"""The page "Names in the source documents": every counterpart exists, and no name of the documents is missing."""

from __future__ import annotations

import dataclasses
import re
from importlib import import_module
from typing import Any

import pytest

from tests.test_packaging import ROOT

PAGE = (ROOT / "docs" / "reference" / "names.md").read_text("utf-8")
ROWS = re.findall(r"^\| (`.*?`) \| `(callgate[\w.]*)` \|", PAGE, re.MULTILINE)

DOCUMENTS = """
    @Tool ToolComponent ToolComponent.run getDefinition toolMetadata ToolDefinition ToolClass.definition
    ToolClass.validator allowNoSchema noSchemaMode providerSchema HydrationResult toolCall mapToolDefinitionToTool
    convertToDefinition parseToolArguments pickTools PickResult ToolSchema IToolExecutor ToolRegistry addInline
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
