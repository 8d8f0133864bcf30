"""Elicitation: the questions of a suspended call to its own user, and the decisions that their answers mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp_types import (
    ClientCapabilities,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequiredResult,
)

from callgate.hooks.facts import Suspension
from callgate.runtime.suspensions.decisions import Approve, Decision, Deny, Respond
from callgate.tools.calls import User
from callgate.tools.values import thaw

KEY = "answer"
"""The key of a question without a name in ``input_requests``: a call asks one question at a time."""
VALUE = "value"
"""The property of a form that asks for one value."""
APPROVE = "approve"
"""The property of a form that asks for an approval."""

_SCALARS = frozenset({"string", "number", "integer", "boolean"})
_KEYWORDS = frozenset(
    {
        "type",
        "title",
        "description",
        "default",
        "minLength",
        "maxLength",
        "format",
        "minimum",
        "maximum",
        "enum",
        "enumNames",
        "oneOf",
        "const",
    }
)
"""The keywords of a form's field. Others are left out: the gate validates the answer against the whole schema."""


@dataclass(frozen=True, slots=True)
class Question:
    """A form, or with *url* a page to open. *single* is True if the answer is one value in an object; *key* is its name."""

    handle: str
    message: str
    schema: Mapping[str, object] | None = None
    url: str | None = None
    approves: bool = False
    single: bool = False
    key: str = KEY

    def is_understood(self, capabilities: ClientCapabilities | None) -> bool:
        """Return True if the client can ask it. A client that names no mode can show forms."""
        offered = None if capabilities is None else capabilities.elicitation
        if offered is None:
            return False
        return offered.url is not None if self.url is not None else offered.form is not None or offered.url is None

    def request(self) -> ElicitRequest:
        """Return the request that asks it."""
        params: ElicitRequestFormParams | ElicitRequestURLParams
        if self.url is not None:
            params = ElicitRequestURLParams(message=self.message, url=self.url)
        else:
            params = ElicitRequestFormParams(message=self.message, requested_schema=dict(self.schema or {}))
        return ElicitRequest(params=params)

    def required(self) -> InputRequiredResult:
        """Return the result that asks it, for clients since version 2026-07-28: they call again with the answer."""
        return InputRequiredResult(request_state=self.handle, input_requests={self.key: self.request()})

    def decision(self, answer: ElicitResult) -> Decision | None:
        """Return the decision that an answer means; None if the decision is made on the page."""
        if answer.action != "accept":
            if self.approves:
                return Deny("the user declined", "The user declined the call.")
            return Respond(error="The user gave no answer.")
        if self.url is not None:
            return None
        content = answer.content or {}
        if self.approves:
            approved = content.get(APPROVE) is True
            return Approve() if approved else Deny("the user declined", "The user declined the call.")
        return Respond(content.get(VALUE) if self.single else content)


def question_of(pending: Suspension, text: str, user: User, approvals_url: str | None) -> Question | None:
    """Return the question of a suspended call for its own user; None if they cannot answer it through a client.

    *text* is the call as an approver sees it, made from the arguments that would run.
    """
    handle, key = pending.handle or "", pending.name or KEY
    if pending.kind == "approval":
        message = f"{pending.prompt}\n{text}"
        if any(rule.allows(user, user.id, 0.0) for rule in pending.rules):
            approve = {"type": "boolean", "title": "Approve", "description": "Run this call"}
            form = {"type": "object", "properties": {APPROVE: approve}, "required": [APPROVE]}
            return Question(handle, message, form, approves=True, key=key)
        if approvals_url is None:
            return None
        return Question(handle, message, url=approvals_url.replace("{handle}", handle), approves=True, key=key)
    schema: dict[str, Any] = {"type": "string"} if pending.schema is None else thaw(pending.schema)
    if schema.get("type") == "object":
        fields = {name: _field(one) for name, one in (schema.get("properties") or {}).items()}
        if not fields or None in fields.values():
            return None
        form = {"type": "object", "properties": fields, "required": list(schema.get("required") or ())}
        return Question(handle, pending.prompt, form, key=key)
    field = _field(schema)
    if field is None:
        return None
    form = {"type": "object", "properties": {VALUE: field}, "required": [VALUE]}
    return Question(handle, pending.prompt, form, single=True, key=key)


def _field(schema: object) -> dict[str, Any] | None:
    """Return the field of a form for a schema; None if forms have none for it."""
    if not isinstance(schema, dict):
        return None
    kind = schema.get("type", "string" if "enum" in schema else None)
    if kind == "array":
        items = schema.get("items")
        if not isinstance(items, dict) or not ("enum" in items or "anyOf" in items):
            return None
        return {key: schema[key] for key in ("type", "title", "description", "items") if key in schema}
    if kind not in _SCALARS:
        return None
    return {"type": kind} | {key: value for key, value in schema.items() if key in _KEYWORDS}
