"""Elicitation: the questions of a suspended call to its own user, and the decisions that their answers mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mcp_types import (
    ClientCapabilities,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequests,
    InputRequiredResult,
)

from callgate.hooks.state.facts import Suspension
from callgate.runtime.hosts.mcp.results import page_of
from callgate.runtime.suspensions.decisions import Approve, Decision, Deny, Respond
from callgate.tools.calls import User
from callgate.tools.values import thaw

KEY = "answer"
"""The key of a question without a name in ``input_requests``."""
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
class Elicitation:
    """A form, or with *url* a page to open. *single* is True if the answer is one value in an object; *key* is its name."""

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

    def decision(self, answer: ElicitResult) -> Approve | Deny | Respond | None:
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


@dataclass(frozen=True, slots=True)
class Elicitations:
    """The requests of a suspended call to its user. With *named*, it asks several questions at once."""

    handle: str
    forms: Mapping[str, Elicitation]
    named: bool = False

    def is_understood(self, capabilities: ClientCapabilities | None) -> bool:
        """Return True if the client can ask all of them."""
        return all(one.is_understood(capabilities) for one in self.forms.values())

    def required(self) -> InputRequiredResult:
        """Return the result that asks them, for clients since version 2026-07-28: they call again with the answers."""
        requests: InputRequests = {key: one.request() for key, one in self.forms.items()}
        return InputRequiredResult(request_state=self.handle, input_requests=requests)

    def decision(self, answers: Mapping[str, object]) -> Decision | None:
        """Return the decision that some answers mean, by key; None without one. Answers to others are left out."""
        given = {key: one for key in self.forms if isinstance(one := answers.get(key), ElicitResult)}
        made = {key: self.forms[key].decision(answer) for key, answer in given.items()}
        if not made or not self.named:
            return next(iter(made.values()), None)
        declined = next((one for one in made.values() if isinstance(one, Respond) and one.error is not None), None)
        return declined or {self.forms[key].key: one.value for key, one in made.items() if isinstance(one, Respond)}


def elicitations_of(
    pending: Suspension, text: str, user: User, approvals_url: str | None, key_of: Callable[[str], str] = str
) -> Elicitations | None:
    """Return what a suspended call asks its own user; None if they cannot answer it through a client.

    *text* is the call as an approver sees it, made from the arguments that would run. *key_of* returns the key of a name.
    """
    made: dict[str, Elicitation | None]
    handle = pending.handle or ""
    if pending.kind == "approval":
        made = {pending.name or KEY: _approval(pending, text, user, approvals_url)}
    elif pending.questions is None:
        made = {pending.name or KEY: _form(pending.prompt, pending.schema, pending.name or KEY)}
    else:
        prefix = f"{pending.prompt}\n" if pending.prompt else ""
        made = {name: _form(f"{prefix}{one.prompt}", one.schema, name) for name, one in pending.questions.items()}
    forms = {key_of(name): one for name, one in made.items() if one is not None}
    return Elicitations(handle, forms, pending.questions is not None) if len(forms) == len(made) else None


def _approval(pending: Suspension, text: str, user: User, approvals_url: str | None) -> Elicitation | None:
    message, key = f"{pending.prompt}\n{text}", pending.name or KEY
    if any(rule.allows(user, user.id, 0.0) for rule in pending.rules):
        approve = {"type": "boolean", "title": "Approve", "description": "Run this call"}
        form = {"type": "object", "properties": {APPROVE: approve}, "required": [APPROVE]}
        return Elicitation(message, form, approves=True, key=key)
    if approvals_url is None:
        return None
    return Elicitation(message, url=page_of(approvals_url, pending), approves=True, key=key)


def _form(prompt: str, asked: Mapping[str, object] | None, key: str) -> Elicitation | None:
    schema: dict[str, Any] = {"type": "string"} if asked is None else thaw(asked)
    if schema.get("type") == "object":
        fields = {name: _field(one) for name, one in (schema.get("properties") or {}).items()}
        if not fields or None in fields.values():
            return None
        form = {"type": "object", "properties": fields, "required": list(schema.get("required") or ())}
        return Elicitation(prompt, form, key=key)
    field = _field(schema)
    if field is None:
        return None
    form = {"type": "object", "properties": {VALUE: field}, "required": [VALUE]}
    return Elicitation(prompt, form, single=True, key=key)


def _field(schema: object) -> dict[str, object] | None:
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
