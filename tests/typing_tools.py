"""What type checkers must see of ``@tool``; checked by mypy and pyright, never run."""

from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar, assert_type

from callgate.tools.context import ToolContext
from callgate.tools.declaring.declare import FunctionTool, as_tool, tool
from callgate.tools.definition import ToolDefinition
from callgate.tools.record import ToolRecord
from callgate.tools.registry import ToolRegistry

R = TypeVar("R")


class Receipt: ...


@tool
def bare(a: int, b: str = "") -> float:
    return 1.0


@tool(effect="irreversible", key=("order_id",), tags={"money"}, deadline=3)
async def refund(order_id: str, *, ctx: ToolContext) -> Receipt:
    ctx.progress(1, 2)
    await ctx.send({"part": 1})
    if ctx.remaining() == 0:
        ctx.abort("late")
    return Receipt()


@tool(name="parts")
async def parts(n: int) -> AsyncIterator[int]:
    yield n


@tool(parameters={"type": "object"})
class Weather:
    def __init__(self, args: dict[str, Any]) -> None:
        self.args = args

    async def run(self) -> str:
        return "sunny"


assert_type(bare(1, b="x"), float)
assert_type(refund.definition, ToolDefinition)
assert_type(refund.record, ToolRecord)
assert_type(Weather({}).args, dict[str, Any])
assert_type(as_tool(refund), ToolRecord)
assert_type(ToolRegistry().register(Weather), ToolRecord)


def result_of(tool: FunctionTool[..., Coroutine[Any, Any, R]]) -> R:
    """As ``gate.invoke`` is typed."""
    raise NotImplementedError


def parts_of(tool: FunctionTool[..., AsyncIterator[R]]) -> R:
    """As ``gate.stream`` may be typed."""
    raise NotImplementedError


assert_type(result_of(refund), Receipt)
assert_type(parts_of(parts), int)
