"""Questions of a remote server: one suspension of the call, and the answers that go back with the server's state."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequests, InputResponse, InputResponses

from callgate.errors import SchemaRefused, StageError, ToolError
from callgate.hooks.tool_view import ToolView
from callgate.runtime.models.wire.names import NameMap
from callgate.runtime.remote.mcp.definitions import visible
from callgate.tools.approval import Question
from callgate.tools.schemas.outside import refuse_hidden
from callgate.tools.schemas.validation import compile_schema

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_QUESTIONS = 10
"""Maximum number of questions of one call, and of its requests that ask something."""
LONGEST_PROMPT = 500

_STATE, _KEYS, _ROUNDS, _WAY = "x-mcp-state", "x-mcp-keys", "x-mcp-rounds", "x-mcp-way"
_OWN, _SAMPLED = "x-mcp-own", "x-mcp-sampled"
_MEMBERS = frozenset({_STATE, _KEYS, _ROUNDS, _WAY, _OWN, _SAMPLED})
_ALONE = ""
"""Stands for the name of a question that is asked alone: it has none."""

Way: TypeAlias = Literal["repeat", "task", "open"]
"""How answers reach the server: with the call sent again, as an update of its task, or in the open request of the call."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A server waits for answers to *requests*, by its keys. *state* is what it wants back, its task, or the open call."""

    requests: InputRequests
    way: Way
    state: str


@dataclass(slots=True)
class Asked:
    """The questions of a call so far, as their names by round, and the answers to the last round."""

    rounds: list[list[str]] = field(default_factory=list[list[str]])
    way: Way = "repeat"
    state: str = ""
    answers: InputResponses = field(default_factory=dict[str, InputResponse])
    sampled: int = 0


def asked_before(ctx: ToolView) -> Asked:
    """Return what a resumed call was asked, with the answers. A user who gave no answer has declined.

    A resumed call starts again, so the schema of the first question keeps the server's state and what was asked before.

    Raises:
        ToolError: the protocol has no form for an answer.
    """
    kept = _last_asked(ctx.resumed_schema or {})
    if kept is None:
        return Asked()
    rounds: list[list[str]] = [list(one) for one in kept[_ROUNDS]]
    given = [_recorded(ctx, names) for names in rounds][-1]
    try:
        answers: InputResponses = {
            key: ElicitResult(action="decline") if given is None else ElicitResult(action="accept", content=given[name])
            for name, key in kept[_KEYS].items()
        }
        answers |= _responses().validate_python(dict(kept.get(_OWN, {})), by_name=False)
    except ValueError as error:  # pydantic's: the schema allowed a value that the protocol has not
        if kept.get(_WAY) == "open":  # the call goes on at the server
            return Asked(
                rounds, "open", kept[_STATE], dict.fromkeys(kept[_KEYS].values(), ElicitResult(action="cancel"))
            )
        raise ToolError("The answer cannot be sent to the server.", code="remote_waits", no_effect=True) from error
    return Asked(rounds, kept.get(_WAY, "repeat"), kept[_STATE], answers, kept.get(_SAMPLED, 0))


async def suspend(
    asking: Asking, own: InputResponses, asked: Asked, server: str, ctx: ToolView, expires: float | None
) -> None:
    """Suspend the call until all forms of a request are answered. *own* has the answers to the rest of it.

    Raises:
        ToolError: the call cannot be suspended, or the forms cannot be asked.
    """
    forms = {key: one.params for key, one in asking.requests.items() if isinstance(one, ElicitRequest)}
    shown = {key: one for key, one in forms.items() if isinstance(one, ElicitRequestFormParams)}
    if len(shown) < len(forms) or len(forms) + sum(map(len, asked.rounds)) > MAX_QUESTIONS:
        raise ToolError("The server waits for something that it cannot be given here.", code="remote_waits")
    # asyncio: compiling a schema of a server must not hold the loop
    await asyncio.to_thread(_check, shown)
    wire = NameMap.of(shown)
    names = {_ALONE if len(shown) == 1 else wire.wire(key): key for key in shown}
    state: dict[str, object] = {_STATE: asking.state, _WAY: asking.way, _KEYS: names}
    state |= {_ROUNDS: [*asked.rounds, list(names)]}
    state |= {
        _SAMPLED: asked.sampled,
        _OWN: _responses().dump_python(own, by_alias=True, mode="json", exclude_none=True),
    }
    questions = {
        name: Question(
            f"The server {server} asks: {visible(shown[key].message)[:LONGEST_PROMPT]}",
            _without_state(shown[key].requested_schema) | (state if number == 0 else {}),
        )
        for number, (name, key) in enumerate(names.items())
    }
    try:
        if _ALONE in questions:
            alone = questions[_ALONE]
            ctx.suspend("input", alone.prompt, schema=alone.schema, expires=expires)
        else:
            prompt = f"The server {server} asks {len(names)} questions."
            ctx.suspend("input", prompt, questions=questions, expires=expires)
    except StageError:
        raise ToolError("The server asks for input, and this call cannot be suspended.", code="remote_waits") from None


@cache
def _responses() -> TypeAdapter[InputResponses]:
    """Return the type of answers; pydantic takes its time to compile it."""
    from pydantic import TypeAdapter

    return TypeAdapter(InputResponses)


def _without_state(schema: Mapping[str, object]) -> dict[str, object]:
    """Return the schema without members that only this module may write."""
    return {key: value for key, value in schema.items() if key not in _MEMBERS}


def _check(forms: Mapping[str, ElicitRequestFormParams]) -> None:
    """Refuse a form that no answer could be checked against."""
    try:
        for form in forms.values():
            compile_schema(form.requested_schema, trusted=False)
            refuse_hidden(form.requested_schema)
    except SchemaRefused as error:
        raise ToolError("The server asks for input with a schema that is refused.", code="remote_waits") from error


def _last_asked(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the state that ``suspend`` has kept: in the schema of the only question, or in that of the first of several."""
    if _ROUNDS in schema:
        return schema
    return next((one for one in (schema.get("properties") or {}).values() if _ROUNDS in one), None)


def _recorded(ctx: ToolView, names: list[str]) -> dict[str, Any] | None:
    """Return the recorded answers of one round; None if the user gave none. A question with an answer suspends nothing."""
    try:
        if names == [_ALONE]:
            return {_ALONE: ctx.suspend("input", "")}
        found: dict[str, Any] = ctx.suspend("input", "", questions={name: Question("") for name in names})
    except ToolError:
        return None
    return found
