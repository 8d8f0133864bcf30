"""A calculator for models: bounded work, numbers only, no names and no attributes."""

from __future__ import annotations

import ast
import cmath
import math
import operator
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from callgate.errors import ToolError
from callgate.tools.declaring.executor import ToolSchema
from callgate.tools.definition import Effect, ToolDefinition

LENGTH_LIMIT = 1000  # characters of an expression
BITS_LIMIT = 4096  # of any intermediate integer
_ROUNDING = 1e-12
_NOT_ARITHMETIC = "it is not an arithmetic expression"
_TOKENS = re.compile(
    r"(?>[ \t]+|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])|[A-Za-z]\w*(?!\w)|\*\*|//|[-+*/%^(),])*+", re.ASCII
)


class _Refused(Exception):
    """The reason why an expression has no value; it does not quote the expression."""


def evaluate(expression: str) -> int | float | str:
    """Compute the value of an arithmetic expression; ``^`` and ``**`` are both the power.

    A complex value is text, such as ``"1 + 2i"``: JSON has no complex numbers.

    Operators ``+ - * / // % ^``, parentheses, ``pi``, ``e``, ``tau`` and common functions. It takes less than a
    millisecond: an expression has at most 1000 characters, an integer at most 4096 bits.

    Raises:
        ToolError: the expression has no finite value; the text, ``Calculation failed: ...``, says why without values.
    """
    try:
        return _checked(_evaluate(expression))
    except _Refused as error:
        reason = str(error)
    except ZeroDivisionError:
        reason = "division by zero"
    except OverflowError:
        reason = "a value is too large"
    except (RecursionError, MemoryError):
        reason = "it is nested too deeply"
    except ValueError:
        reason = "a function was given a value outside its domain"
    except TypeError:
        reason = "a function was given the wrong number or kind of values"
    except SyntaxError:
        reason = _NOT_ARITHMETIC
    raise ToolError(f"Calculation failed: {reason}")


class CalculatorTool:
    """The calculator as an executor; register an instance."""

    schema = ToolSchema(
        name="CalculatorTool",
        description=(
            "Calculates the result of a mathematical expression with + - * / // % ^, parentheses, pi, e, tau and "
            "functions such as sqrt, log, sin, min, max, round."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "expression": {
                    "type": "string",
                    "description": "The mathematical expression to evaluate (e.g., '2 + 2 * (5 / 3)')",
                    "minLength": 1,
                    "maxLength": LENGTH_LIMIT,
                }
            },
            "required": ["expression"],
            "additionalProperties": False,
        },
        output_schema={
            "type": "object",
            "properties": {"result": {"type": ["number", "string"], "description": "Text for a complex number."}},
            "required": ["result"],
            "additionalProperties": False,
        },
        examples=(
            {"input": {"expression": "sqrt(16) + 2^3"}, "output": {"result": 12}},
            {"input": {"expression": "(10 + 5) / 3"}, "output": {"result": 5}},
        ),
    )
    definition: ToolDefinition = schema.to_definition(effect=Effect.READ, tags={"math"})

    async def execute(self, input: dict[str, Any], context: object = None) -> dict[str, object]:
        """Return ``{"result": number}``, or the text of a complex number; never suspends.

        Raises:
            ToolError: the expression has no finite value.
        """
        return {"result": evaluate(input["expression"])}


def _evaluate(expression: str) -> object:
    if len(expression) > LENGTH_LIMIT:
        raise _Refused(f"it is longer than {LENGTH_LIMIT} characters")
    if not expression.strip() or not _TOKENS.fullmatch(expression.strip()):
        raise _Refused(_NOT_ARITHMETIC)
    evaluator, refused, reasons = _evaluator()
    try:
        return evaluator.eval(expression.strip().replace("^", "**"))
    except refused as error:
        raise _Refused(reasons.get(type(error), _NOT_ARITHMETIC)) from None


def _checked(value: object) -> int | float | str:
    """A finite number; whole numbers become integers, and complex ones text."""
    if isinstance(value, complex) and cmath.isfinite(value):
        value = _rounded(value)
        if value.imag:
            return _complex_text(value)
        value = value.real
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _Refused("the result is not a finite number")
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _rounded(value: complex) -> complex:
    """Drop a part that is nothing but the rounding error of the other."""
    if abs(value.real) < abs(value.imag) * _ROUNDING:
        return complex(0.0, value.imag)
    return complex(value.real, 0.0) if abs(value.imag) < abs(value.real) * _ROUNDING else value


def _complex_text(value: complex) -> str:
    size = abs(value.imag)
    imaginary = "i" if size == 1 else f"{size:.14g}i"
    if not value.real:
        return imaginary if value.imag > 0 else f"-{imaginary}"
    return f"{value.real:.14g} {'+' if value.imag > 0 else '-'} {imaginary}"


def _number(value: object) -> object:
    """Check for a number that is small enough for one more step."""
    if isinstance(value, bool) or not isinstance(value, int | float | complex):
        raise _Refused("only numbers can be calculated with")
    if isinstance(value, int) and value.bit_length() > BITS_LIMIT:
        raise _Refused("a value is too large")
    return value


def _on_numbers(function: Callable[..., object]) -> Callable[..., object]:
    """Wrap a function to take and return numbers, by position only."""

    def bounded(*values: object) -> object:
        return _number(function(*map(_number, values)))

    return bounded


def _sqrt(value: complex) -> object:
    return math.sqrt(value) if not isinstance(value, complex) and value >= 0 else cmath.sqrt(value)


def _power(base: Any, exponent: Any) -> object:
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and base.bit_length() * abs(exponent) > BITS_LIMIT:
        raise _Refused("a value is too large")
    return base**exponent


def _round(value: float, digits: object = 0) -> object:
    if not isinstance(digits, int) or abs(digits) > 15:
        raise _Refused("round takes at most 15 digits")
    return round(value, digits)


def _factorial(value: Any) -> object:
    if value > 170:
        raise _Refused("a value is too large")
    return math.factorial(int(value) if value == int(value) else value)


_OPERATORS: dict[type, Callable[..., object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: dict[str, Callable[..., object]] = {
    **{name: getattr(math, name) for name in "cbrt exp log log2 log10 hypot gcd lcm ceil floor trunc".split()},
    **{name: getattr(math, name) for name in "sin cos tan asin acos atan atan2 sinh cosh tanh degrees radians".split()},
    "sqrt": _sqrt,
    "abs": abs,
    "min": min,
    "max": max,
    "round": _round,
    "factorial": _factorial,
    "pow": _power,
}
_CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau}
_NODES = frozenset({ast.Expr, ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Constant})


@cache
def _evaluator() -> tuple[Any, type[Exception], dict[type, str]]:
    """simpleeval reduced to arithmetic, its base error, and texts for its errors."""
    import simpleeval  # type: ignore[import-untyped]  # ships no types

    library: Any = simpleeval
    made = library.SimpleEval(
        operators={kind: _on_numbers(function) for kind, function in _OPERATORS.items()},
        functions={name: _on_numbers(function) for name, function in _FUNCTIONS.items()},
        names=dict(_CONSTANTS),
    )
    made.nodes = {kind: handler for kind, handler in made.nodes.items() if kind in _NODES}
    reasons = {
        library.FunctionNotDefined: "it uses a function that is not known",
        library.NameNotDefined: "it uses a name that is not known",
    }
    return made, library.InvalidExpression, reasons
