"""The registry: contract 8, 30, 72, 82, C6, C28, C29."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from callgate.errors import DefinitionError, UnknownTool
from callgate.tools import registry as module
from callgate.tools.calculator import CalculatorTool
from callgate.tools.declaring.declare import as_tool, tool
from callgate.tools.declaring.executor import ToolSchema
from callgate.tools.definition import ToolDefinition
from callgate.tools.record import ToolRecord
from callgate.tools.registry import ToolRegistry, validate_tool
from callgate.tools.schemas import outside
from callgate.tools.schemas.engines.base import Validator
from callgate.tools.schemas.engines.dialect import Role
from callgate.tools.schemas.validation import compile_schema

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}


@pytest.fixture(autouse=True)
def verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Schemas are judged elsewhere: here it is recorded who is asked, and ``bad`` is refused."""
    seen: list[str] = []

    def compile_outside(definition: ToolDefinition, formats: object) -> dict[Role, Validator]:
        assert formats == "assert"
        seen.append(definition.name)
        if definition.name == "bad":
            raise DefinitionError("a bad schema")
        return {"parameters": compile_schema(SCHEMA)}

    monkeypatch.setattr(outside, "compile_outside", compile_outside)
    return seen


def record(name: str, description: str = "Does it.") -> ToolRecord:
    return ToolRecord(ToolDefinition(name, description, SCHEMA), lambda arguments, ctx: arguments)


async def greet(who: str) -> str:
    """Greet someone."""
    return f"hello {who}"


def test_what_is_a_tool_can_be_registered_and_is_found_by_name() -> None:
    """Contract 71, 72, 82."""

    @tool(parameters=SCHEMA)
    class Classy:
        async def run(self) -> None: ...

    registry = ToolRegistry()
    for item, name in [(greet, "greet"), (Classy, "Classy"), (CalculatorTool(), "CalculatorTool"), (record("r"), "r")]:
        added = registry.register(item)
        assert added.id == name
        assert registry.get(name) is added
        assert name in registry
    assert registry.names == ("greet", "Classy", "CalculatorTool", "r")
    assert [item.id for item in registry] == list(registry.names)
    assert registry.list() == tuple(registry)
    assert len(registry) == 4
    assert repr(registry) == "ToolRegistry(greet, Classy, CalculatorTool, r)"


def test_a_tool_that_merely_exists_is_not_registered() -> None:
    """Contract 8."""

    @tool(parameters=SCHEMA)
    class Unused:
        async def run(self) -> None: ...

    assert len(ToolRegistry()) == 0
    del Unused
    gc.collect()


def test_a_taken_name_is_refused_with_the_documents_words() -> None:
    """Contract 30, C6."""
    registry = ToolRegistry([record("x")])
    with pytest.raises(DefinitionError, match=r"^Duplicate tool names: x$"):
        registry.register(record("x"))
    with pytest.raises(DefinitionError, match=r"^Duplicate tool names: a, b$"):
        ToolRegistry([record("a"), record("b"), record("c"), record("b"), record("a"), record("a")])


def test_a_taken_name_can_be_taken_over_on_purpose() -> None:
    """Contract C6."""
    old, new = record("x"), record("x", "Does it better.")
    registry = ToolRegistry([record("w"), old, record("y")])
    registry.register(new, replace=True)
    assert registry.get("x") is new
    assert registry.names == ("w", "x", "y")
    assert registry.id_of(new) == "x"
    with pytest.raises(UnknownTool):
        registry.id_of(old)


def test_add_validated_judges_schemas_and_add_inline_does_not(verified: list[str]) -> None:
    """Contract 82."""
    registry = ToolRegistry()
    registry.add_inline(record("bad"))
    assert verified == []
    registry.add_validated(record("good"))
    registry.register(record("fine"))
    assert verified == ["good", "fine"]
    for add in (registry.add_validated, registry.register):
        with pytest.raises(DefinitionError, match="bad schema"):
            add(record("bad"), replace=True)
    assert registry.names == ("bad", "good", "fine")
    with pytest.raises(DefinitionError, match="bad schema"):
        ToolRegistry([record("bad")])


def test_validate_tool_gives_the_record(verified: list[str]) -> None:
    """Contract 82."""
    assert validate_tool(greet) is as_tool(greet)
    assert verified == []
    assert validate_tool(record("foreign")).validators  # compiled under the limits
    assert verified == ["foreign"]
    assert module.validate_tool is validate_tool


def test_an_unknown_name_tells_developers_the_nearest_and_models_nothing() -> None:
    """Contract C10a, C29."""
    registry = ToolRegistry([record("get_weather"), record("get_time")])
    with pytest.raises(UnknownTool, match="did you mean 'get_weather'") as caught:
        registry.get("get_wether")
    assert caught.value.public == "There is no such tool."
    assert caught.value.code == "unknown_tool"
    with pytest.raises(UnknownTool, match="none is registered"):
        ToolRegistry().get("x")
    with pytest.raises(UnknownTool) as caught:
        registry.get("\x1b[2J" + "x" * 500)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 250
    assert "nope" not in registry
    assert 5 not in registry


def test_only_enabled_tools_are_shown() -> None:
    """Contract 72, C28."""
    registry = ToolRegistry([record("a"), record("b"), record("c")])
    assert [item.name for item in registry.schemas()] == ["a", "b", "c"]
    assert [item.name for item in registry.schemas({"c", "a", "zz"})] == ["a", "c"]
    assert [item.name for item in registry.schemas(lambda name: name > "a")] == ["b", "c"]
    assert registry.schemas([]) == ()
    assert registry.definitions({"b"}) == (registry.get("b").definition,)
    shown = registry.schemas({"a"})[0]
    assert isinstance(shown, ToolSchema)
    assert shown.input_schema == SCHEMA


def test_the_version_goes_up_with_every_change_and_with_nothing_else() -> None:
    registry = ToolRegistry()
    versions = [registry.version]
    changes: list[Callable[[], object]] = [
        lambda: registry.register(record("a")),
        lambda: registry.add_inline(record("b")),
        lambda: registry.register(record("a"), replace=True),
        lambda: registry.remove("b"),
    ]
    for change in changes:
        change()
        versions.append(registry.version)
    assert versions == sorted(set(versions))
    registry.get("a")
    registry.schemas()
    with pytest.raises(DefinitionError):
        registry.register(record("a"))
    assert registry.version == versions[-1]


def test_a_removed_tool_is_gone() -> None:
    registry = ToolRegistry([greet])
    removed = registry.remove("greet")
    assert removed.id == "greet"
    assert "greet" not in registry
    with pytest.raises(UnknownTool):
        registry.id_of(greet)
    with pytest.raises(UnknownTool):
        registry.remove("greet")


def test_a_tool_object_leads_to_its_name() -> None:
    class Shop:
        async def order(self, item: str) -> None: ...

    shop, calculator = Shop(), CalculatorTool()
    renamed = tool(name="other")(greet)
    registry = ToolRegistry([renamed, calculator, shop.order])
    assert registry.id_of(renamed) == "other"
    assert registry.id_of(renamed.record) == "other"
    assert registry.id_of(calculator) == "CalculatorTool"
    assert registry.id_of(shop.order) == "order"
    with pytest.raises(UnknownTool):
        registry.id_of(greet)
    with pytest.raises(UnknownTool, match="another tool is named"):
        registry.id_of(Shop().order)
    with pytest.raises(UnknownTool, match="another tool is named"):
        registry.id_of(CalculatorTool())


def test_iterating_is_not_disturbed_by_a_change() -> None:
    registry = ToolRegistry([record("a"), record("b")])
    for item in registry:
        registry.register(record(item.id + "2"))
    assert registry.names == ("a", "b", "a2", "b2")


def test_listeners_hear_of_each_change_after_it_was_made(caplog: pytest.LogCaptureFixture) -> None:
    """Until they stop; one that fails is logged, and changes nothing."""
    registry = ToolRegistry()
    seen: list[tuple[str, ...]] = []

    def fails() -> None:
        raise RuntimeError("the listener is broken")

    registry.on_change(fails)
    stop = registry.on_change(lambda: seen.append(registry.names))
    registry.register(record("a"))
    registry.register(record("a", "Another."), replace=True)
    registry.register(record("b"))
    registry.remove("a")
    stop()
    stop()
    registry.remove("b")
    assert seen == [("a",), ("a",), ("a", "b"), ("b",)]
    assert caplog.text.count("provider.failed") == 5
    with pytest.raises(DefinitionError):
        registry.register(record("bad"))
    assert len(seen) == 4


@pytest.mark.parametrize("name", ["Pay", "PAY"])
def test_a_tool_from_outside_does_not_look_like_another_tool(name: str) -> None:
    """A person approves by name. The application may give its own tools any names, and a name that has gone is free."""

    @tool(effect="read")
    def pay() -> str:
        """Pay."""
        return "mine"

    async def execute(input: dict[str, Any], ctx: Any) -> None: ...

    outside = ToolRecord(ToolDefinition(name, "Pay.", {"type": "object"}), execute, trusted=False, formats="assert")
    registry = ToolRegistry([pay])
    for add in (registry.register, registry.add_inline, lambda one: registry.exchange([one])):
        with pytest.raises(DefinitionError, match="looks like that of another tool: give its names a prefix"):
            add(outside)
    with pytest.raises(DefinitionError, match="looks like"):
        ToolRegistry([pay, outside])
    assert registry.names == ("pay",)
    registry.exchange([outside], ["pay"])
    assert registry.names == (name,)
    assert set(ToolRegistry([pay, tool(name=name, effect="read")(lambda: "also mine")]).names) == {"pay", name}
