"""``CedarPolicy``: Cedar policies as a decider of ``Authorize`` (extra ``policy``)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from callgate.errors import DefinitionError, HookError
from callgate.hooks.stock.policy.cedar_schema import CALL, Type, arguments_type, schema_of, value_of
from callgate.hooks.stock.policy.rules import ABSTAIN, MAY_FORBID, PENDING, PERMIT, Judgement, Ruling, Verdict
from callgate.providers.principal import User
from callgate.tools.declaring.declare import as_tool
from callgate.tools.definition import ToolDefinition
from callgate.tools.naming import did_you_mean

_CONTEXT = {"Var": "context"}
MAX_MORE = 1_000
"""Maximum number of further tools whose facts are kept; those that come again are checked again."""
_ARGS = {".": {"left": _CONTEXT, "attr": "args"}}


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """The facts about one tool that ``check_tools`` computes."""

    definition: ToolDefinition
    arguments: Type
    entities: tuple[dict[str, Any], ...]
    late: bool  # a policy that reads arguments may apply to it


class CedarPolicy:
    """A set of Cedar policies for ``Authorize``, validated against the tools before the first decision.

    A policy sees ``principal`` (``User``, in ``Role`` and ``Tenant``), ``action`` (one per tool, all in
    ``Action::"call"``), ``resource`` (``Tool``, in ``Tag``) and ``context.args``, typed by the tool's schema. Arguments
    of type ``number`` are Cedar decimals. Every policy needs an ``@id``, which the log names in a denial.

    Args:
        policies: the text of the policies (``str``), or the file that holds it (``Path``).
        tools: tools, definitions, or a registry; with None call ``check_tools`` later. A decision about a tool that the
            policies were not checked against is an error, which denies the call.
        id: the id of the decider.

    Raises:
        HookError: cedarpy is not installed, or a policy does not parse, has no unique ``@id``, is a template, names an
            unknown tool, or does not fit the types of the arguments.
    """

    def __init__(
        self, policies: str | PathLike[str], *, tools: Iterable[object] | None = None, id: str = "cedar"
    ) -> None:
        try:
            import cedarpy
        except ImportError as error:
            raise HookError('CedarPolicy needs cedarpy; install it with pip install "callgate[policy]"') from error
        self.id = id
        self._cedar = cedarpy
        self._text = policies if isinstance(policies, str) else Path(policies).read_text("utf-8")
        named = self._parse(self._text)
        self.ids = tuple(named)
        late = {name: one for name, one in named.items() if _mentions(one, _CONTEXT)}
        self._all = self._set(named)
        self._early = self._set({name: one for name, one in named.items() if name not in late})
        # The scopes of the policies that read arguments, without conditions: they show whether such a policy may apply.
        self._scopes = self._set({name: {**one, "effect": "permit", "conditions": []} for name, one in late.items()})
        any_user = {"principal": {"op": "All"}, "effect": "permit", "conditions": []}
        self._concerns = self._set({name: {**one, **any_user} for name, one in late.items()})
        self._has_early, self._has_late = len(late) < len(named), bool(late)
        self._late_permits = {name for name, one in late.items() if one["effect"] == "permit"}
        self._reads = _arguments_read(late)
        self._known: dict[str, _Known] = {}
        self._more: dict[str, _Known] = {}  # by digest: clients may have different tools of one name
        if tools is not None:
            self.check_tools(tools)

    # ------------------------------------------------------------------ registration

    def check_tools(self, tools: Iterable[object]) -> None:
        """Validate every policy against the Cedar schema of these tools. A later check replaces an earlier one.

        Raises:
            HookError: a policy does not fit; the message names it.
        """
        definitions = [one if isinstance(one, ToolDefinition) else as_tool(one).definition for one in tools]
        names = {one.name for one in definitions}
        schema = schema_of(definitions)
        result = self._cedar.validate_policies(self._text, schema)
        if not result.validation_passed:
            raise HookError(f"{self.id}: {'; '.join(self._named(one.error) for one in result.errors)}")
        for policy, name in self._tools_named():
            if name not in names:
                raise HookError(f"{self.id}: policy {policy!r}: there is no tool {name!r}{did_you_mean(name, names)}")
        self._known, self._more = {one.name: self._about(one) for one in definitions}, {}

    def check_more_tools(self, tools: Iterable[ToolDefinition]) -> None:
        """Validate every policy against further tools, such as those of a client, beside the tools of the last check.

        Raises:
            HookError: a policy does not fit a tool; the tools before it are known from then on.
        """
        for one in tools:
            if one.digest in self._more:
                continue
            schema = schema_of([*(known.definition for known in self._known.values()), one])
            result = self._cedar.validate_policies(self._text, schema)
            if not result.validation_passed:
                errors = "; ".join(self._named(each.error) for each in result.errors)
                raise HookError(f"{self.id}: the policies do not fit tool {one.name!r}: {errors}")
            if len(self._more) >= MAX_MORE:
                self._more = {}
            self._more[one.digest] = self._about(one)

    def _about(self, tool: ToolDefinition) -> _Known:
        attributes: dict[str, Any] = {"name": tool.name, "version": tool.version, "tags": sorted(tool.tags)}
        if tool.effect is not None:
            attributes["effect"] = tool.effect.value
        parents = [{"type": "Tag", "id": tag} for tag in sorted(tool.tags)]
        entities = (
            {"uid": {"type": "Tool", "id": tool.name}, "attrs": attributes, "parents": parents},
            {
                "uid": {"type": "Action", "id": tool.name},
                "attrs": {},
                "parents": [{"type": "Action", "id": CALL}],
            },
        )
        known = _Known(tool, arguments_type(tool), entities, late=False)
        late = self._has_late and bool(self._ask(self._concerns, User(""), known, {})[1])
        return _Known(tool, known.arguments, entities, late=late)

    def _parse(self, text: str) -> dict[str, Any]:
        """Parse the policies into Cedar's JSON, by ``@id``."""
        try:
            parsed = json.loads(self._cedar.policies_to_json_str(text))
        except ValueError as error:
            raise HookError(f"{self.id}: the policies do not parse: {error}") from error
        if parsed["templates"]:
            raise HookError(f"{self.id}: templates are not supported; write policies without ?slots")
        named: dict[str, Any] = {}
        self._positions: list[tuple[str, str]] = []
        for position, policy in parsed["staticPolicies"].items():
            name = (policy.get("annotations") or {}).get("id")
            if not name:
                raise HookError(f'{self.id}: {position} has no @id("..."); add one, the log names it in a denial')
            if name in named:
                raise HookError(f"{self.id}: two policies have the @id {name!r}")
            named[name] = policy
            self._positions.append((position, name))
        if not named:
            raise HookError(f"{self.id}: the text has no policy; give at least one")
        self._parsed = named
        return named

    def _named(self, error: str) -> str:
        """Replace the policy numbers in an error of the validator by their ``@id``s."""
        for position, name in self._positions:
            error = error.replace(f"`{position}`", repr(name))
        return error

    def _tools_named(self) -> Iterator[tuple[str, str]]:
        for policy, parsed in self._parsed.items():
            for node in _nodes(parsed):
                if node.get("type") == "Tool" and isinstance(node.get("id"), str):
                    yield policy, node["id"]

    def _set(self, named: Mapping[str, object]) -> object:
        return self._cedar.PolicySet.from_json_str(
            json.dumps({"staticPolicies": dict(named), "templates": {}, "templateLinks": []})
        )

    # ------------------------------------------------------------------ deciding

    def before_input(self, user: User, tool: ToolDefinition) -> Judgement:
        """Evaluate the policies that do not read arguments; PENDING or MAY_FORBID when another one may apply."""
        known = self._of(tool)
        judgement = self._judge(self._early, user, known, {}) if self._has_early else ABSTAIN
        if isinstance(judgement, Ruling) or not known.late:
            return judgement
        concerned = self._ask(self._scopes, user, known, {})[1]
        if not concerned:
            return judgement
        return PENDING if judgement is PERMIT or self._late_permits.intersection(concerned) else MAY_FORBID

    def on_input(self, user: User, tool: ToolDefinition, arguments: Mapping[str, object]) -> Judgement:
        """Evaluate all policies with the arguments that they read."""
        known = self._of(tool)
        read = {name: value for name, value in arguments.items() if self._reads is None or name in self._reads}
        return self._judge(self._all, user, known, value_of(known.arguments, read))

    def _judge(self, policies: object, user: User, known: _Known, arguments: Mapping[str, object]) -> Judgement:
        allowed, reasons = self._ask(policies, user, known, arguments)
        if allowed:
            return PERMIT
        if not reasons:
            return ABSTAIN
        return Ruling(Verdict.FORBID, f"{self.id} policy {', '.join(map(repr, sorted(reasons)))}")

    def _ask(self, policies: Any, user: User, known: _Known, arguments: Mapping[str, Any]) -> tuple[bool, list[str]]:
        """Return Cedar's decision and the ids of its policies. A policy that Cedar skips after a failure is an error here."""
        principal = {"type": "User", "id": user.id}
        name = known.definition.name
        request = {
            "principal": principal,
            "action": {"type": "Action", "id": name},
            "resource": {"type": "Tool", "id": name},
            "context": {"args": arguments},
        }
        result = self._cedar.is_authorized(request, policies, [_principal(user), *known.entities])
        if result.diagnostics.errors or result.decision not in (self._cedar.Decision.Allow, self._cedar.Decision.Deny):
            raise RuntimeError(f"{self.id}: {len(result.diagnostics.errors)} policies failed to evaluate")
        return result.allowed, result.diagnostics.reasons

    def _of(self, tool: ToolDefinition) -> _Known:
        known = self._known.get(tool.name) or self._more.get(tool.digest)
        if known is None or (known.definition is not tool and known.definition != tool):
            raise DefinitionError(
                f"{self.id}: the policies were not checked against tool {tool.name!r}; write CedarPolicy(..., tools=...) "
                "or call check_tools"
            )
        return known


def _principal(user: User) -> dict[str, Any]:
    attributes: dict[str, Any] = {"id": user.id, "roles": sorted(user.roles), "scopes": sorted(user.scopes)}
    parents = [{"type": "Role", "id": role} for role in user.roles]
    if user.tenant is not None:
        attributes["tenant"] = user.tenant
        parents.append({"type": "Tenant", "id": user.tenant})
    return {"uid": {"type": "User", "id": user.id}, "attrs": attributes, "parents": parents}


def _nodes(node: object) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for part in node.values():
            yield from _nodes(part)
    elif isinstance(node, list):
        for part in node:
            yield from _nodes(part)


def _mentions(policy: object, wanted: object) -> bool:
    return any(node == wanted for node in _nodes(policy))


def _arguments_read(policies: Mapping[str, object]) -> frozenset[str] | None:
    """Return the arguments that policies read; None when a policy reads them as a whole."""
    read: set[str] = set()

    def walk(node: object) -> bool:
        if isinstance(node, list):
            return all([walk(part) for part in node])  # noqa: C419  (walk every part: walking collects)
        if not isinstance(node, dict):
            return True
        for way in (".", "has"):
            inner = node.get(way)
            if isinstance(inner, dict) and inner.get("left") == _ARGS and isinstance(inner.get("attr"), str):
                read.add(inner["attr"])
                return True
        return node != _CONTEXT and walk(list(node.values()))

    return frozenset(read) if walk(dict(policies)) else None
