"""Settings that take names refuse paths and patterns, which no member, tool or tenant is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate import Gate, Hook
from callgate.errors import HookError
from callgate.hooks import Audit, Authorize, Quota, Redact, RequireApproval, Retry, Tracing, forbid, permit
from callgate.providers.logs import configure_logging
from tests.hooks.making import record

PATHS = {
    "card.number": "/card/number",
    "*": "/*",
    "$.card": "/card",
    "$.card.number": "/card/number",
    "$": "/",
    "/card/number": "/card/number",
    "card/number": "/card/number",
    "people[*].iban": "/people/*/iban",
    "people[0]": "/people/0",
    "$['card']": "/card",
    "card.*": "/card/*",
    "#/card": "/card",
}
MASKING: dict[str, Callable[[str], object]] = {
    "Redact": Redact,
    "Audit": lambda name: Audit(secret_keys=[name]),
    "Tracing": lambda name: Tracing(arguments=True, secret_keys=[name]),
    "configure_logging": lambda name: configure_logging(secret_keys=[name]),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("make", MASKING.values(), ids=MASKING)
def test_a_path_among_names_is_refused(make: Callable[[str], object], path: str) -> None:
    """Such a name masked nothing."""
    with pytest.raises((HookError, ValueError), match="a path"):
        make(path)


@pytest.mark.parametrize(("path", "pointer"), PATHS.items())
def test_redact_says_which_pointer_to_write(path: str, pointer: str) -> None:
    """The pointer of the message masks what the path means."""
    with pytest.raises(HookError) as refused:
        Redact(path)
    assert f"write Redact(pointers=[{pointer!r}])" in str(refused.value)
    if path == "$":
        return
    value: Any = {"card": {"number": "4111"}, "people": [{"iban": "DE02"}]}
    assert Redact(pointers=[pointer]).masked(value) != value


@pytest.mark.parametrize("name", ["password", "apiKey", "API-KEY", "api_key", "card number", "Straße", "@id", "x:y"])
@pytest.mark.parametrize("make", MASKING.values(), ids=MASKING)
def test_a_name_is_taken(make: Callable[[str], object], name: str) -> None:
    """The control; a name has any letters and punctuation that no path is written with."""
    try:
        assert make(name) is None or isinstance(make(name), Hook)
    finally:
        configure_logging()


@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4))
def test_a_pointer_that_redact_takes_masks_the_member_that_it_names(names: list[str]) -> None:
    """Any pointer is refused, or masks: it is never taken and without an effect."""
    pointer = "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)
    value: Any = "secret"
    for name in reversed(names):
        value = {name: value}
    try:
        hook = Redact(pointers=[pointer])
    except HookError:
        assert any(set(name) & set("$[*") for name in names)
        return
    assert hook.masked(value) != value


@pytest.mark.parametrize("pointer", ["card", "$.card", "/$.card", "/people[0]", "/people[*]/iban", "/**/iban", "/a~b"])
def test_another_form_of_path_among_pointers_is_refused(pointer: str) -> None:
    """Each of them named a member that does not exist."""
    with pytest.raises(HookError, match="is not a JSON Pointer; write '/"):
        Redact(pointers=[pointer])


# Names of tools, tags, tenants, roles and scopes

SELECTING: dict[str, Callable[[Any], object]] = {
    "a hook": lambda names: Gate([record()], [RequireApproval(**names)]),
    "a wrapper": lambda names: Gate([record()], [Retry(**names)]),
    "a limit": lambda names: Gate([record()], [Quota("1/hour", **names)]),
    "gate.use": lambda names: Gate([record()]).use(RequireApproval(), **names),
    "permit": lambda names: Authorize(permit("p", **names)),
    "forbid": lambda names: Authorize(forbid("f", **names)),
}
PATTERNS = [{"tools": {"*"}}, {"tools": {"billing_*"}}, {"tags": {"*"}}, {"tenants": {"*"}}]


@pytest.mark.parametrize("names", PATTERNS, ids=str)
@pytest.mark.parametrize("make", SELECTING.values(), ids=SELECTING)
def test_a_pattern_among_names_is_refused(make: Callable[[Any], object], names: dict[str, set[str]]) -> None:
    """``forbid(tenants={"*"})`` forbade nothing, and ``RequireApproval(tools={"*"})`` asked for no approval."""
    with pytest.raises(HookError, match=r"has the pattern '.*\*'; list the names, or leave it out to match all"):
        make(names)


@pytest.mark.parametrize("what", ["roles", "scopes"])
def test_a_pattern_among_roles_or_scopes_is_refused(what: str) -> None:
    """A scope such as ``mail:*`` is a name that an identity provider may grant."""
    for rule in (permit, forbid):
        names: Any = {what: {"*"}}
        with pytest.raises(HookError, match="has the pattern"):
            rule("r", **names)
        assert rule("r", scopes={"mail:*"}).scopes == frozenset({"mail:*"})
