"""Model responses in the JSON of three providers, written by hand, with valid and invalid calls as in practice.

The module defines no outcome. The gate decides how each call ends.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from callgate import User

ANN = User("ann", "acme", roles={"clerk"})
MAX = User("max", "acme", roles={"clerk", "manager"})
GUS = User("gus", "globex", roles={"clerk"})
EVE = User("eve", "acme")


class Then(StrEnum):
    """An event at the desk after a response."""

    MAX_AGREES = "max agrees to refunds"
    QUOTES_OFF = "quotes are switched off"


@dataclass(frozen=True)
class Answer:
    """One response of a model, the user that it works for, and the next event."""

    wire: str
    user: User
    response: dict[str, Any]
    then: Then | None = None


def openai_chat(user: User, *calls: tuple[str, str, Any], finish_reason: str = "tool_calls") -> Answer:
    """Make a Chat Completions response: the model writes the arguments as text, normally JSON."""
    written = [
        {"id": f"call_{key}", "type": "function", "function": {"name": name, "arguments": _text(arguments)}}
        for key, name, arguments in calls
    ]
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": written}
    return Answer(
        "openai_chat",
        user,
        {
            "id": f"chatcmpl-{calls[0][0]}",
            "object": "chat.completion",
            "created": 1_773_130_000,
            "model": "gpt-5-mini",
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}],
            "usage": {"prompt_tokens": 612, "completion_tokens": 48, "total_tokens": 660},
        },
    )


def anthropic(user: User, say: str, *calls: tuple[str, str, Any]) -> Answer:
    """Make a Messages API response: text first, then blocks whose input is an object."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": say}]
    blocks += [
        {"type": "tool_use", "id": f"toolu_{key}", "name": name, "input": arguments} for key, name, arguments in calls
    ]
    return Answer(
        "anthropic",
        user,
        {
            "id": f"msg_{calls[0][0]}",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-5",
            "content": blocks,
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 871, "output_tokens": 96},
        },
    )


def ollama(user: User, *calls: tuple[str, str, Any]) -> Answer:
    """Make a response of Ollama's own API: arguments are objects; older servers send no call id (an empty key here)."""
    written = [
        {**({"id": f"ollama_{key}"} if key else {}), "function": {"name": name, "arguments": arguments}}
        for key, name, arguments in calls
    ]
    return Answer(
        "ollama",
        user,
        {
            "model": "qwen3:8b",
            "created_at": "2026-03-10T08:06:40.218Z",
            "message": {"role": "assistant", "content": "", "tool_calls": written},
            "done": True,
            "done_reason": "stop",
            "eval_count": 57,
        },
    )


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


RESERVATION = {"order_id": "A-1001", "sku": "lamp", "quantity": 2, "until": "2026-03-20T18:00:00+01:00"}
SLOW = {**RESERVATION, "order_id": "A-1002", "warehouse": "north"}
PARCEL = {"weight_kg": 2.5, "country": "DE"}

UNASKED = anthropic(
    MAX, "Refunding A-1001.", ("unasked", "refund", {"order_id": "A-1001", "cents": 2_900, "reason": "late"})
)
REFUNDS = anthropic(
    MAX,
    "Refunding the three orders now.",
    ("too_much", "refund", {"order_id": "A-1003", "cents": 250_000, "reason": "returned"}),
    ("refund", "refund", {"order_id": "A-1001", "cents": 2_900, "reason": "late"}),
    (
        "twice",
        "refund",
        {"order_id": "A-1001", "cents": 2_900, "reason": "late"},
    ),  # a repeat: the ledger returns the receipt
    ("more", "refund", {"order_id": "A-1001", "cents": 3_900, "reason": "late"}),  # the same refund with another amount
)

ANSWERS = [
    openai_chat(
        ANN,
        ("look", "get_order", {"order_id": "A-1001"}),
        ("comma", "get_order", '{"order_id": "A-1002",}'),  # invalid JSON with exactly one possible meaning
    ),
    ollama(ANN, ("again", "get_order", {"order_id": "A-1001"})),
    anthropic(GUS, "Let me find that order.", ("other_tenant", "get_order", {"order_id": "A-1001"})),
    anthropic(
        ANN,
        "I will update both addresses.",
        (
            "move",
            "set_address",
            {"order_id": "A-1001", "address": {"street": "Am Wall 77", "postcode": "28203", "country": "DE"}},
        ),
        (
            "types",
            "set_address",
            {"order_id": "A-1002", "address": {"street": "Rue du Bac 14", "postcode": 75007, "country": "France"}},
        ),
    ),
    openai_chat(
        ANN,
        ("fresh", "get_order", {"order_id": "A-1001"}),
        ("broken", "get_order", '{"order_id": "A-1001", "fields": ["total"'),
        ("unknown", "cancel_order", {"order_id": "A-1001"}),
        ("inject", "get_order", {"order_id": "A-1001", "db": "sqlite:///other.db"}),
    ),
    openai_chat(
        ANN,
        (
            "cut",
            "quote_shipping",
            '{"weight_kg": 1, "country": "DE"}',
        ),  # looks complete, but the provider reports it as cut
        finish_reason="length",
    ),
    anthropic(
        ANN,
        "I am sorry for the trouble. I will refund you right away.",
        ("forbidden", "refund", {"order_id": "A-1001", "cents": 12_900, "reason": "late"}),
    ),
    openai_chat(
        MAX,
        ("reserve", "reserve_stock", RESERVATION),
        ("slow", "reserve_stock", SLOW),
        ("scarce", "reserve_stock", {**RESERVATION, "sku": "desk", "quantity": 3}),
    ),
    openai_chat(MAX, ("impatient", "reserve_stock", SLOW)),  # the first one ended with an unknown outcome
    replace(UNASKED, then=Then.MAX_AGREES),  # the tool needs the person's consent
    REFUNDS,
    openai_chat(
        MAX,
        (
            "strict",
            "refund",
            '{"order_id": "A-1002", "cents": 500, "reason": "damaged",}',
        ),  # a decimal comma in an amount
        ("when", "reserve_stock", {**RESERVATION, "until": "end of next week"}),
        ("damaged", "get_order", {"order_id": "A-1004"}),
    ),
    ollama(ANN, *(("", "quote_shipping", {**PARCEL, "weight_kg": weight}) for weight in (1, 2.5, 5, 10))),
    ollama(MAX, ("tortoise", "quote_shipping", {**PARCEL, "carrier": "tortoise"})),
    openai_chat(ANN, ("track", "track_parcel", {"parcel": "P-7001"})),  # swift closes the first connection
    openai_chat(ANN, ("long", "track_parcel", {"parcel": "P-7002"})),
    *(
        anthropic(GUS, "Where is it?", (f"down_{n}", "track_parcel", {"parcel": f"P-900{n}", "carrier": "tortoise"}))
        for n in (1, 2, 3)
    ),
    replace(openai_chat(GUS, ("up", "track_parcel", {"parcel": "P-7003"})), then=Then.QUOTES_OFF),
    ollama(GUS, ("off", "quote_shipping", PARCEL)),
    openai_chat(EVE, ("role", "get_order", {"order_id": "A-1002"})),
]
TRACED = REFUNDS
"""The response whose stages and messages to the model are printed."""
