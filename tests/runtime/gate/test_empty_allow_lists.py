"""An explicit empty list of those who may do something allows nobody, or is refused; it never allows everybody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from callgate import Approval, Gate, ToolDefinition, User, tool
from callgate.errors import CallgateError
from callgate.hooks import Authorize, forbid, permit
from callgate.jobs import EmbeddedJobs
from callgate.runtime.hosts.mcp.face import server

EMPTY: list[Any] = [[], (), set(), frozenset(), {}.keys()]
USERS = [User("u", tenant="acme"), User("a", tenant="acme", roles={"admin"})]


def gate_with(roles: Any) -> Gate:
    @tool(effect="read", allowed_roles=roles)
    async def work() -> int:
        """Work."""
        return 1

    return Gate([work])


@pytest.mark.parametrize("empty", EMPTY, ids=repr)
@pytest.mark.parametrize("user", USERS, ids=lambda user: user.id)
async def test_an_empty_allowed_roles_lets_nobody_in(empty: Any, user: User) -> None:
    """I5: a setting that an environment left empty opened the tool. It is hidden, and its calls are denied."""
    async with gate_with(empty) as gate:
        assert gate.tools_for(user) == []
        result = await gate.call("work", user=user)
    assert (result.outcome, result.error and result.error.code) == ("denied", "role")


@pytest.mark.parametrize("user", USERS, ids=lambda user: user.id)
async def test_control_without_a_list_everybody_may_call(user: User) -> None:
    """None is no limit, also where it is written."""
    async with gate_with(None) as gate:
        assert len(gate.tools_for(user)) == 1
        assert (await gate.call("work", user=user)).output == 1


@pytest.mark.parametrize("roles", [None, [], ["admin"]])
def test_a_definition_keeps_its_list_as_data(roles: list[str] | None) -> None:
    """A stored definition is as closed as the original."""
    made = ToolDefinition("work", "Work.", {"type": "object"}, allowed_roles=None if roles is None else set(roles))
    again = ToolDefinition.from_dict(made.to_dict())
    assert again.allowed_roles == made.allowed_roles
    assert [again.allows(user.roles) for user in USERS] == [roles is None, roles != []]


def rule_with(rule: Callable[..., object], what: str) -> Callable[[Any], object]:
    return lambda empty: rule("r", **{what: empty})


REFUSED: dict[str, Callable[[Any], object]] = {
    "Approval(roles=)": lambda empty: Approval(roles=empty),
    "Approval(escalate_to=)": lambda empty: Approval(escalate_after=5, escalate_to=empty),
    "EmbeddedJobs(queues=)": lambda empty: EmbeddedJobs(queues=empty),
    "mcp.server(allowed_hosts=)": lambda empty: server(Gate(), allowed_hosts=empty),
    "Authorize(roles=)": lambda empty: Authorize(roles=empty),
    "Authorize(scopes=)": lambda empty: Authorize(scopes=empty),
    **{
        f"{rule.__name__}({what}=)": rule_with(rule, what)
        for rule in (permit, forbid)
        for what in ("roles", "scopes", "tenants", "tools", "tags", "effects")
    },
}


@pytest.mark.parametrize("empty", EMPTY, ids=repr)
@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_an_empty_list_of_a_rule_is_refused(make: Callable[[Any], object], empty: Any) -> None:
    """``Approval(roles=[])`` let every colleague approve."""
    with pytest.raises(CallgateError):
        make(empty)


@pytest.mark.parametrize("roles", [None, {"lead"}])
def test_an_approval_is_stored_as_before(roles: set[str] | None) -> None:
    """Stored rules have ``[]`` for any role."""
    rule = Approval(roles=roles)
    assert rule.to_dict()["roles"] == sorted(roles or ())
    assert Approval.from_dict(rule.to_dict()) == rule
