"""The calculator: contract 79, and the bounds of libraries.md 13."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.errors import ToolError
from callgate.tools.calculator import CalculatorTool, evaluate
from callgate.tools.declaring.declare import as_tool
from callgate.tools.definition import Effect
from callgate.tools.record import Style
from tests.harness.cpu import cpu_seconds


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("sqrt(16) + 2^3", 12),
        ("(10 + 5) / 3", 5),
        ("2 + 2 * (5 / 3)", 2 + 2 * (5 / 3)),
        ("2**10", 1024),
        ("2^3^2", 512),
        ("-2^2", -4),
        ("7 // 2 + 7 % 2", 4),
        ("  1.5e3 + .5 ", 1500.5),
        ("max(1, 2, 3) - min(1, 2)", 2),
        ("round(2.71828, 2)", 2.72),
        ("log(8, 2)", 3),
        ("2 * pi", 2 * math.pi),
        ("factorial(5)", 120),
        ("2^100", 2**100),
    ],
)
def test_it_calculates(expression: str, value: float) -> None:
    """Contract 79."""
    assert evaluate(expression) == pytest.approx(value)


def test_whole_results_are_integers() -> None:
    assert type(evaluate("sqrt(16) + 2^3")) is int
    assert type(evaluate("10 / 4")) is float


@pytest.mark.parametrize(
    "expression",
    [
        "1/0",
        "1e308 * 10",
        "1e400",
        "0 * 1e400",
        "2^2000",
        "2^2000 * 2^2000 * 2^200 / 2^4200",
        "exp(1000)",
        "",
        "   ",
        "2 +",
        "1\n2",
        "1\n+2",
        "1; 2",
        "x",
        "sqrt",
        "foo(1)",
        "max()",
        "sqrt(1, 2)",
        "min(1, *(2, 3))",
        "sqrt(x=4)",
        "1 if 1 else 2",
        "1 < 2",
        "True",
        "True + 1",
        "None",
        "'a' * 10",
        '"a"',
        "f'{1:>99999999}'",
        "[1]",
        "(1).__class__",
        "(1, 2)",
        "lambda: 1",
        "__import__('os')",
        "x := 1",
        "0x10",
        "1_000",
        "2pi",
        "1or 2",
        "½",
        "١",
        "round(1.5, 99)",
        "round(1, 1.5)",
        "factorial(0.5)",
        "factorial(-1)",
    ],
)
def test_what_has_no_finite_value_fails_with_the_documents_prefix(expression: str) -> None:
    """Contract 79."""
    with pytest.raises(ToolError, match=r"^Calculation failed: "):
        evaluate(expression)


@pytest.mark.parametrize("expression", ["4242424242 / 0", "secretname", "secretname(4242424242)", "log(-4242424242)"])
def test_the_reason_carries_nothing_of_the_expression(expression: str) -> None:
    with pytest.raises(ToolError) as caught:
        evaluate(expression)
    assert "4242424242" not in caught.value.public
    assert "secretname" not in caught.value.public


@pytest.mark.parametrize(
    "expression",
    [
        "9^9^9",
        "4000000^4000000",
        "10^4000000",
        "10^-4000000",
        "9" * 990 + "^9",
        "*".join(["9" * 90] * 11),
        "1" * 1001,
        "1+" * 499 + "1",
        "(" * 499 + "1" + ")" * 499,
        "-" * 990 + "1",
        "sqrt(" * 160 + "1" + ")" * 160,
        "round(1, -999999999)",
        "factorial(99999)",
        "lcm(" + ",".join(str(2**60 + n) for n in range(40)) + ")",
        "a" * 990 + "!",
        "1<<999999999",
    ],
)
def test_nothing_of_a_thousand_characters_takes_long(expression: str) -> None:
    """libraries.md 13: bounded by construction, as a thread cannot be stopped."""
    evaluate("1")

    def work() -> None:
        with contextlib.suppress(ToolError):
            evaluate(expression)

    assert cpu_seconds(work, 0.25) < 0.25


@given(st.text(alphabet="0123456789.eE+-*/%^(), \npisqrtlogmax_'x=[]{}:!", max_size=60))
def test_any_text_gives_a_finite_number_or_a_tool_error(expression: str) -> None:
    value: Any = 0
    refused = ""
    try:
        value = evaluate(expression)
    except ToolError as error:
        refused = error.public
    assert type(value) in {int, float}
    assert math.isfinite(value)
    assert refused == "" or refused.startswith("Calculation failed: ")


@given(st.integers(-(10**6), 10**6), st.sampled_from("+-*"), st.integers(-(10**6), 10**6))
def test_integer_arithmetic_agrees_with_python(left: int, operator: str, right: int) -> None:
    expected = {"+": left + right, "-": left - right, "*": left * right}[operator]
    assert evaluate(f"({left}) {operator} ({right})") == expected


async def test_as_an_executor_it_takes_the_documents_input_and_gives_their_output() -> None:
    """Contract 71, 79."""
    record = as_tool(CalculatorTool())
    assert record.id == "CalculatorTool"
    assert record.style is Style.RECORD
    assert record.is_async
    assert record.definition.effect is Effect.READ
    assert (record.definition.parameters or {})["required"] == ["expression"]
    for example in record.definition.examples:
        assert await record.execute(example["input"], None) == example["output"]
    with pytest.raises(ToolError, match="division by zero"):
        await record.execute({"expression": "1/0"}, None)


def test_its_schema_names_are_the_documents() -> None:
    shown: dict[str, Any] = CalculatorTool.schema.to_dict()
    assert shown["name"] == "CalculatorTool"
    assert shown["inputSchema"]["properties"]["expression"]["type"] == "string"
    assert shown["examples"][0] == {"input": {"expression": "sqrt(16) + 2^3"}, "output": {"result": 12}}


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("sqrt(-4)", "2i"),
        ("sqrt(-1)", "i"),
        ("-sqrt(-1)", "-i"),
        ("1 + sqrt(-4)", "1 + 2i"),
        ("1 - sqrt(-4)", "1 - 2i"),
        ("(-1)^0.5", "i"),
        ("(-8)^(1/3)", "1 + 1.7320508075689i"),
        ("sqrt(-1)^2", -1),
        ("(-8)^(1/3)^1 * 0", 0),
    ],
)
def test_a_complex_result_is_formatted_as_text(expression: str, text: str | int) -> None:
    """Contract 79."""
    assert evaluate(expression) == text


@pytest.mark.parametrize(
    "expression", ["max(sqrt(-1), 1)", "sin(sqrt(-1))", "sqrt(-1) % 2", "sqrt(-1) / 0", "1e308 * 10 * sqrt(-1)"]
)
def test_what_has_no_finite_complex_value_fails(expression: str) -> None:
    """Contract 79."""
    with pytest.raises(ToolError, match=r"^Calculation failed: "):
        evaluate(expression)
