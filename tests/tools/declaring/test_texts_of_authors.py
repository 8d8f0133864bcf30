"""Texts that an author writes for the model: sections of a docstring, and the errors of validators."""

from __future__ import annotations

from typing import Annotated, Any

import pydantic
import pytest
from pydantic_core import PydanticCustomError, PydanticKnownError

from callgate import Gate, Invalid, as_tool, tool
from callgate.hooks import CircuitBreaker, Metrics, Retry, Tracing, by_stage

TITLES = [
    "Args",
    "Arguments",
    "Params",
    "Parameters",
    "Kwargs",
    "Keyword Args",
    "Keyword Arguments",
    "Other Parameters",
]
SHAPES = {
    "a section": "Adds.\n\n    {title}:\n        a: The first.\n        b (int): The second.\n    ",
    "one line": "Adds.\n\n    {title}: a: The first. b (int): The second.",
    "on the summary line": "Adds. {title}: a: The first. b (int): The second.",
    "begun on the summary line": "Adds. {title}:\n        a: The first.\n        b (int): The second.\n    ",
    "first entry on the summary line": "Adds. {title}: a: The first.\n        b (int): The second.\n    ",
}


@pytest.mark.parametrize("title", TITLES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_section_of_parameters_is_read_in_each_spelling_and_place(title: str, shape: str) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    add.__doc__ = SHAPES[shape].format(title=title)
    definition = as_tool(tool(effect="read")(add)).definition
    found = {name: one.get("description") for name, one in (definition.parameters or {})["properties"].items()}
    assert (definition.description, found) == ("Adds.", {"a": "The first.", "b": "The second."})


@pytest.mark.parametrize(
    "text", ["See Args: the notes.", "Adds. Kwargs: see below", "Note: Args: are summed.", "Args and b: add."]
)
def test_prose_with_the_words_of_a_heading_stays_the_description(text: str) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    add.__doc__ = text
    assert as_tool(tool(effect="read")(add)).definition.description == text


# ------------------------------------------------------------------ errors of validators


def custom(value: int) -> int:
    text: Any = f"{value} belongs to Ann"  # pyright allows literals only; authors without pyright write this
    raise PydanticCustomError("even", text)


def custom_with_values(value: int) -> int:
    raise PydanticCustomError("owner", "{value} belongs to Ann", {"value": value})


def custom_public(value: int) -> int:
    raise PydanticCustomError("owner", "{value} belongs to Ann", {"value": value, "public": "choose another number"})


def invalid(value: int) -> int:
    raise Invalid(f"{value} belongs to Ann", public="choose another number")


def private(value: int) -> int:
    raise ValueError(f"{value} belongs to Ann")


def known(value: int) -> int:
    raise PydanticKnownError("greater_than", {"gt": 7})


CASES = [
    (custom, "must satisfy: even"),
    (custom_public, "choose another number"),
    (invalid, "choose another number"),
    (custom_with_values, "must satisfy: owner"),
    (private, "must pass the tool's own check"),
    (known, "must satisfy: greater than"),
]


@pytest.mark.parametrize(("check", "text"), CASES, ids=[check.__name__ for check, _ in CASES])
@pytest.mark.parametrize("place", ["parameter", "model"])
async def test_the_public_text_of_a_validator_reaches_the_model_and_its_values_do_not(
    check: Any, text: str, place: str
) -> None:
    checked: Any = Annotated[int, pydantic.AfterValidator(check)]
    model = pydantic.create_model("Order", cents=(checked, ...))

    async def pay(cents: Any) -> int:
        """Pay."""
        return 1

    pay.__annotations__["cents"] = checked if place == "parameter" else model
    one = tool(effect="read")(pay)
    given = {"cents": 666_777} if place == "parameter" else {"cents": {"cents": 666_777}}
    async with Gate([one]) as gate:
        result = await gate.call("pay", given)
    assert not result.ok
    assert result.error is not None
    assert text in result.error.public
    assert "666777" not in result.error.public
    assert "Ann" not in result.error.public


# ------------------------------------------------------------------ hooks under a stage that they do not have


@pytest.mark.parametrize("make", [lambda: Retry(3), Tracing, Metrics, lambda: CircuitBreaker(3)])
def test_a_stock_hook_under_a_wrong_stage_is_answered_with_by_stage(make: Any) -> None:
    hook = make()
    name = type(hook).__name__.lower()
    with pytest.raises(Exception, match=rf"has no such method; .*write by_stage\({name}\)"):
        Gate([], [{"will_parse_input": [hook]}])
    Gate([], [by_stage(hook)])
