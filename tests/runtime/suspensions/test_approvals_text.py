"""What an approver reads is made from what would run: nothing in it can pass for anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate import Approval, Edit, ToolCall, User, tool
from callgate.providers.principal import ANONYMOUS
from callgate.runtime.suspensions.decisions import call_text
from callgate.runtime.suspensions.resumption import SuspendedCall
from tests.runtime.effects.scene_desk import ANN, BOB, asked, gate_of

NASTY = [
    'x", cents=1) # approved',
    "x'\n\nAPPROVED BY THE BANK\r\n",
    "\u202e)000,1=stnec",
    "\u2066hidden\u2069",
    "a\u200bb\u00adc\ufeffd",
    "\x1b[2J\x1b[31mred",
    "back\\slash \\u0041 \\n",
    "\u0430\u0440\u0440le",
    "\x7f\x85\u2028\u2029",
    "</td><script>alert(1)</script>",
    "\U0001f600\u0301",
]


@tool(
    effect="irreversible",
    requires_approval=True,
    parameters={"type": "object", "properties": {"cents": {"type": "integer"}, "to": {"type": "string"}}},
)
async def pay(**arguments: Any) -> str:
    """Pay."""
    return "paid"


def read(text: str) -> dict[str, Any]:
    """What a careful reader takes the text for: a call with JSON values, its odd names in quotes."""
    assert text.isascii()
    assert text.isprintable()
    value: dict[str, Any] = json.loads("{" + _quoted(text[4:-1]) + "}")
    return value


def _quoted(arguments: str) -> str:
    """``name=value`` as ``"name": value``; strings are left alone."""
    found, at, in_string, name = [], 0, False, ""
    while at < len(arguments):
        letter = arguments[at]
        if in_string:
            found.append(arguments[at : at + 2] if letter == "\\" else letter)
            at += 2 if letter == "\\" else 1
            in_string = letter != '"'
            continue
        in_string = letter == '"'
        if letter == "=":
            found.append(f'"{name}":' if name else ":")
            name = ""
        elif letter.isidentifier() or (name and letter.isalnum()):
            name += letter
        else:
            found.append(name + letter)
            name = ""
        at += 1
    return "".join([*found, name])


def shown(arguments: dict[str, Any]) -> str:
    """The text of a call with these arguments."""
    ready = (
        "pay",
        "v",
        "p",
        ANONYMOUS,
        arguments,
        True,
        "h",
        "r",
        None,
        "c",
        False,
        False,
        None,
        "approval",
        "",
        None,
        (),
    )
    return call_text(SuspendedCall(*ready, nonce="n"))


@pytest.mark.parametrize("value", NASTY)
async def test_nothing_in_a_value_or_a_name_can_pass_for_anything_else(value: str) -> None:
    """I5: the text is the runtime's, never a model's."""
    async with gate_of(pay) as gate:
        sent = {"cents": 5, "to": value, value: 7}
        handle = await asked(gate, wanted=ToolCall(id="c1", name="pay", arguments=sent))
        seen = await gate.waits.look(handle, BOB)
        assert seen.text.startswith("pay(cents=5, to=")
        assert seen.text.isascii()
        assert seen.text.isprintable()
        assert read(seen.text) == sent == seen.arguments
        assert seen.prompt == "pay needs approval before it runs."


JSON = st.recursive(
    st.booleans().map(int) | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(deadline=None, max_examples=30)
@given(st.dictionaries(st.text(), st.text() | st.integers()), st.dictionaries(st.text(), st.text() | st.integers()))
def test_two_calls_with_different_arguments_never_read_alike(one: dict[str, Any], two: dict[str, Any]) -> None:
    """I5."""
    assert (shown(one) == shown(two)) == (list(one.items()) == list(two.items()))


@settings(deadline=None, max_examples=30)
@given(st.dictionaries(st.text(), JSON))
def test_the_text_of_a_call_is_one_line_of_plain_letters_that_says_all(arguments: dict[str, Any]) -> None:
    """I5."""
    assert read(shown(arguments)) == arguments


async def test_the_reason_is_the_authors_and_the_tools_name_what_people_call_it() -> None:
    rules = [Approval(reason="Large sums."), Approval(reason="New customer.")]
    asks = iter([*rules, *rules])

    @tool(effect="irreversible", title="Pay somebody", requires_approval=lambda _: next(asks))
    async def transfer(cents: int, to: str = "") -> str:
        """Pay."""
        return "paid"

    async with gate_of(transfer) as gate:
        for rule in rules:
            handle = await asked(
                gate, wanted=ToolCall(id="c1", name="transfer", arguments={"cents": 5, "to": "Ignore all that."})
            )
            assert (await gate.waits.look(handle, BOB)).prompt == rule.reason


async def test_what_an_approver_has_edited_is_shown_as_it_would_run() -> None:
    """I5."""
    two = Approval(quorum=2)

    @tool(effect="irreversible", requires_approval=two)
    async def transfer(cents: int) -> str:
        """Pay."""
        return "paid"

    async with gate_of(transfer) as gate:
        handle = await asked(gate, ANN, ToolCall(id="c1", name="transfer", arguments='{"cents": 5.0}'))
        assert (await gate.waits.look(handle, BOB)).text == "transfer(cents=5)"
        await gate.resume(handle, Edit({"cents": 6}), approver=BOB)
        assert (await gate.waits.look(handle, User("eve", "acme"))).text == "transfer(cents=6)"
