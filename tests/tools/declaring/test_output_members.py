"""What a tool returns has the members of its return annotation and no others, as with a response model of FastAPI."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from collections.abc import AsyncIterator, Callable, Iterator
from types import GenericAlias
from typing import Annotated, Any, NotRequired

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from callgate import Gate, Outcome, User, tool

ROW = {"id": 1, "password": "s3cret"}


class Model(BaseModel):
    id: int


class More(Model):
    password: str = "s3cret"


class Named(BaseModel):
    number: int = Field(alias="id")


@dataclasses.dataclass
class Data:
    id: int


class Plain(TypedDict):
    id: int


class Dated(TypedDict):
    id: int
    at: NotRequired[dt.date]


class Holder(BaseModel):
    part: Model


class PlainHolder(TypedDict):
    part: Plain


@dataclasses.dataclass
class Unchecked:
    part: Model


class Tree(TypedDict):
    id: int
    parts: NotRequired[list[Tree]]


def returning(hint: Any, value: object, *, schema: bool) -> Callable[..., object]:
    async def find() -> object:
        return value

    find.__annotations__["return"] = hint
    return tool(effect="read", **({} if schema else {"output_schema": False}))(find)  # type: ignore[call-overload, no-any-return]


async def output_of(made: Callable[..., object]) -> object:
    async with Gate([made]) as gate:
        result = await gate.call("find", {}, user=User("ann"))
    return result.output if result.outcome is Outcome.SUCCESS else result.outcome


HOLDERS: list[tuple[Callable[[Any], Any], Callable[[object], object]]] = [
    (lambda hint: hint, lambda value: value),
    (lambda hint: hint | None, lambda value: value),
    (lambda hint: GenericAlias(list, (hint,)), lambda value: [value]),
    (lambda hint: GenericAlias(dict, (str, hint)), lambda value: {"a": value}),
    (lambda hint: GenericAlias(Iterator, (hint,)), lambda value: iter([value])),
    (lambda hint: GenericAlias(tuple, (hint, int)), lambda value: (value, 1)),
]


@pytest.mark.parametrize("schema", [True, False])
@pytest.mark.parametrize(("holder", "put"), HOLDERS)
@pytest.mark.parametrize(
    ("hint", "value"),
    [
        *((hint, ROW) for hint in (Model, Named, Data, Plain, Dated)),
        (Model, More(id=1)),
        *((hint, {"part": ROW, "password": "s3cret"}) for hint in (Holder, PlainHolder, Unchecked)),
        (Unchecked, Unchecked(ROW)),  # type: ignore[arg-type]  # as a dataclass allows
        (Holder, Holder.model_construct(part=ROW)),
        (Tree, {"id": 1, "parts": [ROW, {"id": 2, "parts": [ROW]}]}),
        (Model | Plain, ROW),
    ],
)
async def test_an_output_has_no_members_that_its_type_lacks(
    hint: Any, value: object, holder: Callable[[Any], Any], put: Callable[[object], object], schema: bool
) -> None:
    found = await output_of(returning(holder(hint), put(value), schema=schema))
    assert "id" in str(found)
    assert "s3cret" not in str(found)


@pytest.mark.parametrize("hint", [Model, Plain])
async def test_neither_has_a_part_of_a_stream(hint: Any) -> None:
    async def find() -> AsyncIterator[object]:
        yield ROW

    find.__annotations__["return"] = AsyncIterator[hint]
    assert await output_of(tool(effect="read")(find)) == [{"id": 1}]


@pytest.mark.parametrize("hint", [dict, dict[str, Any], dict[str, str | int], Any])
async def test_control_a_type_without_members_keeps_all(hint: Any) -> None:
    assert await output_of(returning(hint, ROW, schema=True)) == ROW


@pytest.mark.parametrize("value", [{}, {"id": "1"}, {"id": None}, [], "1"])
@pytest.mark.parametrize("hint", [Model, Data, Plain, Dated])
async def test_what_only_looks_like_the_type_is_still_refused(hint: Any, value: Any) -> None:
    assert await output_of(returning(hint, value, schema=True)) is Outcome.ERROR


class Refused(BaseModel):
    id: Annotated[int, AfterValidator(lambda value: 1 // 0)]


@pytest.mark.parametrize("schema", [True, False])
@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Model, {"id": 5.0, "password": "s3cret"}),
        (Refused, ROW),
        (Model, {"password": "s3cret"}),
        (list[Model] | None, [{"id": "1", "password": "s3cret"}]),
        (Holder, {"part": [ROW]}),
        (Holder, {"part": {"id": ROW}}),
        (tuple[Model, ...] | Model, [ROW]),
        (dict[str, Model] | list[Model], {"a": ROW}),
    ],
)
async def test_nor_has_one_that_the_type_would_not_take(hint: Any, value: Any, schema: bool) -> None:
    found = await output_of(returning(hint, value, schema=schema))
    if hint is Holder:  # whether it is an object is for the schema to say
        assert schema is False or found is Outcome.ERROR
    else:
        assert "s3cret" not in str(found)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: int


class Loose(BaseModel):
    data: dict[str, Any]
    more: list[Any]


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Open, ROW),
        (Loose, {"data": ROW, "more": [ROW]}),
        (Model | dict[str, Any], ROW),
        (list[Model] | list[Any], [ROW]),
    ],
)
async def test_control_a_type_that_admits_more_keeps_it(hint: Any, value: Any) -> None:
    assert await output_of(returning(hint, value, schema=True)) == value


class Maybe(TypedDict):
    id: int | None


@pytest.mark.parametrize("schema", [True, False])
@pytest.mark.parametrize("hint", [Maybe, Model, list[Maybe]])
async def test_a_number_that_is_not_finite_does_not_become_null(hint: Any, schema: bool) -> None:
    value: object = {"id": math.nan}
    given = [value] if hint == list[Maybe] else value
    assert await output_of(returning(hint, given, schema=schema)) is Outcome.ERROR
