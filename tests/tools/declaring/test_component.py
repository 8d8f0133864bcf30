"""Class tools: contract 1-8, 21-23, C2."""

from __future__ import annotations

import abc
import asyncio
import dataclasses
import gc
import inspect
import json
import pickle
import weakref
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from dependency_injector import containers, providers
from pydantic import BaseModel
from typing_extensions import TypedDict

from callgate.errors import DefinitionError
from callgate.providers.provide import Provide
from callgate.tools.context import ToolContext
from callgate.tools.declaring.component import ToolComponent, attach_validator, definition_of
from callgate.tools.declaring.declare import as_tool, tool
from callgate.tools.definition import ToolDefinition
from callgate.tools.record import Style, ToolRecord

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["c", "f"]}},
    "required": ["city"],
}


class Db:
    pass


class App(containers.DeclarativeContainer):
    db = providers.Factory(Db)


@tool(name="get_weather", parameters=CITY, effect="read", tags={"weather"})
class Weather:
    """Fetch the weather."""

    units = ("c", "f")

    def __init__(self, args: dict[str, Any]) -> None:
        self.args = args

    @staticmethod
    def helper() -> str:
        return "static"

    @classmethod
    def made_by(cls) -> type:
        return cls

    def city(self) -> str:
        return str(self.args["city"])

    async def run(self, params: Any = None) -> str:
        return f"sunny in {self.city()}"


def read(cls: Any) -> Any:
    """A class tool as a checker cannot see it: with ToolComponent's members."""
    return cls


# ------------------------------------------------------------------ the contract of ToolComponent


def test_the_base_does_nothing_and_has_no_definition() -> None:
    """Contract 3, 22."""
    assert asyncio.run(ToolComponent().run()) is None
    assert asyncio.run(ToolComponent({"a": 1}).run({"b": 2})) is None
    assert ToolComponent.get_definition() is None
    assert ToolComponent.definition is None


def test_a_decorated_class_is_a_tool_component_that_need_not_have_inherited_it() -> None:
    """Contract 1."""
    assert issubclass(Weather, ToolComponent)
    assert isinstance(Weather({"city": "Oslo"}), ToolComponent)


def test_the_original_class_is_kept_under_its_own_name() -> None:
    """Contract 2."""
    assert Weather.__name__ == "Weather"
    assert Weather.__qualname__ == "Weather"
    assert Weather.__module__ == __name__
    assert Weather.__doc__ == "Fetch the weather."
    assert Weather.units == ("c", "f")
    assert Weather.helper() == "static"
    assert Weather.made_by() is Weather
    assert list(inspect.signature(Weather).parameters) == ["args"]
    assert inspect.iscoroutinefunction(Weather.run)


def test_the_constructor_gets_the_validated_arguments_as_one_object() -> None:
    """Contract 2, 21."""
    args = {"city": "Oslo"}
    weather = Weather(args)
    assert weather.args is args
    assert asyncio.run(weather.run()) == "sunny in Oslo"


def test_get_definition_is_the_way_to_the_definition() -> None:
    """Contract 3, 5, 11."""
    definition = read(Weather).get_definition()
    assert isinstance(definition, ToolDefinition)
    assert definition.name == "get_weather"
    assert definition.description == "Fetch the weather."
    assert definition.parameters == CITY
    assert read(Weather).get_definition() is definition
    assert definition_of(Weather) is definition


def test_definition_and_validator_are_read_only_aliases() -> None:
    """Contract C2."""
    assert read(Weather).definition is read(Weather).get_definition()
    for name in ("definition", "validator"):
        with pytest.raises(AttributeError):
            setattr(Weather, name, None)
        with pytest.raises(AttributeError):
            delattr(Weather, name)


def test_the_definition_lies_in_no_attribute() -> None:
    """Contract 4, 6."""
    definition = read(Weather).get_definition()
    for cls in Weather.__mro__:
        assert not any(value is definition for value in vars(cls).values())
    assert not any(isinstance(value, ToolDefinition | ToolRecord) for value in vars(Weather({"city": "x"})).values())
    assert "definition" not in dir(Weather({"city": "x"}))
    with pytest.raises(TypeError):
        json.dumps(Weather)
    assert json.loads(json.dumps(definition.to_dict()))["name"] == "get_weather"


def test_an_authors_own_members_of_those_names_are_not_in_the_way() -> None:
    """Contract 4: collision-free."""

    @tool(parameters=CITY)
    class Dictionary:
        definition = "of a word"

        def __init__(self, args: Any) -> None:
            self.validator = "mine"

        async def run(self) -> str:
            return f"{self.definition} {self.validator}"

    assert read(Dictionary).get_definition().name == "Dictionary"
    assert asyncio.run(Dictionary({}).run()) == "of a word mine"


def test_a_validator_is_attached_beside_the_definition() -> None:
    """Contract 7, 18."""

    @tool(parameters=CITY)
    class Checked:
        async def run(self) -> None: ...

    compiled = read(Checked).validator
    assert compiled.check({"city": "Oslo"}) is not False
    assert compiled.issues({})
    assert read(Checked).validator is compiled
    validator = object()
    attach_validator(Checked, validator)
    assert read(Checked).validator is validator
    with pytest.raises(DefinitionError):
        attach_validator(int, validator)


def test_a_subclass_that_is_not_decorated_has_no_definition() -> None:
    """It may do something else than its parent was declared to do."""

    class Loud(Weather):  # type: ignore[misc, unused-ignore]
        async def run(self, params: Any = None) -> str:
            return "SUNNY"

    assert read(Loud).get_definition() is None
    assert read(Loud).definition is None
    with pytest.raises(DefinitionError, match="decorate it"):
        as_tool(Loud)
    again = tool(name="loud", parameters=CITY)(Loud)
    assert read(again).get_definition().name == "loud"
    assert read(Weather).get_definition().name == "get_weather"
    assert as_tool(again).component is again


def test_a_class_is_not_kept_alive_by_being_a_tool() -> None:
    """Contract 7: the table is weak."""

    def make() -> weakref.ref[type]:
        @tool(parameters=CITY)
        class Passing:
            async def run(self) -> None: ...

        assert as_tool(Passing) is as_tool(Passing)
        attach_validator(Passing, object())
        return weakref.ref(Passing)

    found = make()
    gc.collect()
    assert found() is None


def test_an_instance_can_be_pickled_like_that_of_any_class() -> None:
    assert pickle.loads(pickle.dumps(Weather({"city": "Oslo"}))).args == {"city": "Oslo"}


def test_abstract_slotted_and_inheriting_classes_can_be_tools() -> None:
    class Base(abc.ABC):
        @abc.abstractmethod
        async def run(self) -> str: ...

    @tool(parameters=CITY)
    class Concrete(Base):
        __slots__ = ("args",)

        def __init__(self, args: Any) -> None:
            super().__init__()
            self.args = args

        async def run(self) -> str:
            return str(self.args["city"])

    @tool(parameters=CITY)
    class Inheriting(ToolComponent):
        async def run(self, params: Any = None) -> Any:
            return params["city"]

    assert asyncio.run(Concrete({"city": "Oslo"}).run()) == "Oslo"
    assert isinstance(Concrete, abc.ABCMeta)
    assert read(Concrete).definition.name == "Concrete"
    assert asyncio.run(Inheriting({"city": "Oslo"}).run()) == "Oslo"
    with pytest.raises(TypeError, match="abstract"):
        tool(parameters=CITY)(read(Base))({})


# ------------------------------------------------------------------ constructors


def test_without_a_constructor_run_gets_the_arguments_if_it_asks() -> None:
    """Contract 21, 22: the documents' WeatherTool has no constructor."""

    @tool(parameters=CITY)
    class Silent:
        async def run(self) -> str:
            return "sunny"

    @tool(parameters=CITY)
    class Asking:
        async def run(self, params: Any = None) -> Any:
            """Run it."""
            return params

    @tool(parameters=CITY)
    class Plain:
        def run(self, params: Any = None) -> Any:
            return params

    args = {"city": "Oslo"}
    assert asyncio.run(read(Silent)(args).run()) == "sunny"
    assert asyncio.run(read(Asking)(args).run()) is args
    assert asyncio.run(read(Asking)(args).run({"city": "Rome"})) == {"city": "Rome"}
    assert read(Plain)(args).run() is args
    assert inspect.iscoroutinefunction(Asking.run)
    assert Asking.run.__doc__ == "Run it."
    assert not as_tool(Plain).is_async


def test_injected_parameters_and_the_context_come_by_keyword() -> None:
    """Design 4, 10.1."""

    @tool(parameters=CITY)
    class Injected:
        def __init__(self, args: dict[str, Any], *, db: Annotated[Db, Provide[App.db]], ctx: ToolContext) -> None:
            self.args, self.db, self.ctx = args, db, ctx

        async def run(self) -> Any:
            return self.args, self.db, self.ctx

    @tool(parameters=CITY)
    class OnlyInjected:
        def __init__(self, db: Db = Provide[App.db]) -> None:
            self.db = db

        async def run(self, params: Any = None) -> Any:
            return params, self.db

    record, other = as_tool(Injected), as_tool(OnlyInjected)
    assert [item.name for item in record.injected] == ["db"]
    assert record.context_parameter == "ctx"
    assert asyncio.run(record.execute({"city": "x"}, db=1, ctx=2).run()) == ({"city": "x"}, 1, 2)
    assert asyncio.run(other.execute({"city": "x"}, db=1).run()) == ({"city": "x"}, 1)


def test_a_constructor_that_needs_more_than_one_object_is_refused() -> None:
    """Contract 21: never positional."""

    class Two:
        def __init__(self, city: str, unit: str) -> None: ...
        async def run(self) -> None: ...

    class Keyword:
        def __init__(self, *, city: str) -> None: ...
        async def run(self) -> None: ...

    class InjectedFirst:
        def __init__(self, db: Annotated[Db, Provide[App.db]], args: Any) -> None: ...
        async def run(self) -> None: ...

    class Scalar:
        def __init__(self, city: str) -> None: ...
        async def run(self) -> None: ...

    @dataclasses.dataclass
    class Fields:
        city: str
        unit: str

        async def run(self) -> None: ...

    for cls in (Two, Keyword, InjectedFirst, Fields):
        with pytest.raises(DefinitionError, match="one object, first"):
            tool(parameters=CITY)(cls)
    with pytest.raises(DefinitionError, match="all the arguments as one object"):
        tool(parameters=CITY)(Scalar)


def test_a_typed_arguments_object_gives_the_schema_and_arrives_typed() -> None:
    """Contract 21."""

    class ByModel(BaseModel):
        city: str
        days: int = 1

    @dataclasses.dataclass
    class ByClass:
        city: str
        days: int = 1

    class ByDict(TypedDict):
        city: str

    @tool
    class Modelled:
        def __init__(self, args: ByModel) -> None:
            self.args = args

        async def run(self) -> str:
            return self.args.city

    @tool
    class Classed:
        def __init__(self, args: ByClass) -> None:
            self.args = args

        async def run(self) -> None: ...

    @tool
    class Dicted:
        def __init__(self, args: ByDict) -> None:
            self.args = args

        async def run(self) -> None: ...

    for cls, kind in ((Modelled, ByModel), (Classed, ByClass)):
        record = as_tool(cls)
        assert record.definition.parameters == {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
            "required": ["city"],
            "additionalProperties": False,
        }
        assert record.convert is not None
        converted = record.convert({"city": "Oslo", "days": 2.0})
        assert isinstance(converted, kind)
        assert converted == kind(city="Oslo", days=2)
    assert as_tool(Dicted).convert is None
    assert (as_tool(Dicted).definition.parameters or {})["required"] == ["city"]


# ------------------------------------------------------------------ run and the record


def test_the_record_of_a_class_says_how_to_run_it() -> None:
    record = as_tool(Weather)
    assert record.style is Style.COMPONENT
    assert record.execute is Weather
    assert record.component is Weather
    assert record.is_async
    assert record.definition is read(Weather).get_definition()
    assert record.definition.output_schema == {"type": "string"}
    assert as_tool(Weather) is record


def test_a_plain_run_and_a_streaming_run_are_known() -> None:
    @tool(parameters=CITY, output_schema=False)
    class Plain:
        def run(self) -> int:
            return 1

    @tool(parameters=CITY)
    class Streaming:
        async def run(self) -> AsyncIterator[int]:
            yield 1

    assert not as_tool(Plain).is_async
    assert as_tool(Plain).definition.output_schema is None
    assert as_tool(Streaming).streams
    assert as_tool(Streaming).definition.capabilities == {"streaming": True}


def test_a_class_without_a_run_of_its_own_is_refused() -> None:
    """Contract 22."""

    class Without:
        pass

    class Inherited(ToolComponent):
        pass

    class Attribute:
        run = 5

    class Needy:
        async def run(self, what: str) -> None: ...

    for cls in (Without, Inherited, Attribute):
        with pytest.raises(DefinitionError, match="async def run"):
            tool(parameters=CITY)(cls)
    with pytest.raises(DefinitionError, match="defaults"):
        tool(parameters=CITY)(Needy)


def test_a_class_without_a_schema_is_refused_unless_it_opts_out() -> None:
    """Contract 13, 14."""

    class Bare:
        def __init__(self, args: dict[str, Any]) -> None: ...
        async def run(self) -> None: ...

    with pytest.raises(DefinitionError, match="give `parameters`"):
        tool(Bare)
    with pytest.raises(DefinitionError, match="give `parameters`"):
        tool(parameters=None)(Bare)
    made = tool(allow_no_schema=True, no_schema_mode="human-approval")(Bare)
    assert not as_tool(made).definition.has_schema
    assert read(made).validator is None
    assert read(ToolComponent).validator is None


def test_decorating_twice_is_refused() -> None:
    with pytest.raises(DefinitionError, match="already"):
        tool(parameters=CITY)(Weather)
