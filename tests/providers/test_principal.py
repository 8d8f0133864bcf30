"""Users: claims are immutable, and a token shows nowhere."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from callgate import (
    Gate,
    Outcome,
    ToolCall,
    ToolContext,
    ToolError,
    User,
    configure_logging,
    tool,
)
from callgate.hooks import Audit, Tracing
from callgate.providers.principal_json import user_as_json, user_from_json

CANARY = "tok-CANARY-8f3a"
ANN = User("ann", "acme", {"clerk"}, claims={"email": "ann@example.com", "groups": ["a", {"b": 1}]}, token=CANARY)


def test_claims_are_an_immutable_copy() -> None:
    given: dict[str, Any] = {"groups": ["a"]}
    user = User("ann", claims=given)
    given["groups"].append("admin")
    assert user.claims == {"groups": ("a",)}
    with pytest.raises(TypeError):
        user.claims["groups"] = ()  # type: ignore[index]
    assert hash(user) == hash(User("ann"))
    assert user != User("ann")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"claims": [("a", 1)]}, "User.claims is a mapping, not list"),
        ({"claims": {1: 2}}, "its names are texts"),
        ({"claims": {"at": object()}}, "holds JSON values only, not object"),
        ({"token": b"abc"}, "User.token is a text, not bytes"),
        *(
            ({"id": id}, r"User\.id is a text, not \w+; write User\(str\(...\)\)")
            for id in (5, None, UUID(int=1), b"ann")
        ),
    ],
)
def test_a_wrong_type_is_refused(settings: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"id": "ann", **settings}
    with pytest.raises(TypeError, match=message) as caught:
        User(**given)
    assert "abc" not in str(caught.value)


def test_an_empty_token_is_refused() -> None:
    """The scrubber would find it in every text."""
    with pytest.raises(ValueError, match="write token=None"):
        User("ann", token="")


def test_a_user_comes_back_from_json_and_from_a_pickle_without_the_token() -> None:
    for back in (user_from_json(json.loads(json.dumps(user_as_json(ANN)))), pickle.loads(pickle.dumps(ANN))):
        assert back == ANN
        assert back.claims == ANN.claims
        assert back.token is None
    assert user_as_json(User("ann")).keys() == {"id", "tenant", "roles", "scopes"}


def test_copies_in_the_process_keep_the_token() -> None:
    assert copy.copy(ANN).token == copy.deepcopy([ANN])[0].token == CANARY
    assert dataclasses.replace(ANN, roles={"manager"}).token == CANARY


def test_the_token_is_in_no_text_of_a_user() -> None:
    shown = f"{ANN} {ANN!r} {ANN!s} {[ANN]} {user_as_json(ANN)} {pickle.dumps(ANN)!r} {ANN.__reduce__()}"
    assert CANARY not in shown
    assert "ann@example.com" not in repr(ANN)


def stored_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def shown_everywhere(user: User, secret: str, folder: Path) -> str:
    """Run calls that succeed, fail, are suspended and run as a job; return every text that they leave behind."""

    @tool(effect="idempotent")
    async def count(ctx: ToolContext) -> int:
        """Count, in a job: a token does not leave the process of its request."""
        assert ctx.user == user
        assert ctx.user.token is None
        return 1

    @tool(effect="read")
    async def ask(ctx: ToolContext) -> str:
        """Call another service on the user's behalf."""
        assert ctx.user.token == user.token
        return "done"

    @tool(effect="read")
    async def fail(ctx: ToolContext) -> str:
        """Fail as an HTTP client does."""
        raise ConnectionError(f"the order service refused {secret} at the door")

    @tool(effect="read")
    async def refuse(ctx: ToolContext) -> str:
        """Refuse."""
        raise ToolError("The other service refused.") from ValueError(secret)

    @tool(effect="irreversible", requires_approval=True)
    async def pay(cents: int) -> str:
        """Pay."""
        return f"{cents}"

    spans = InMemorySpanExporter()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    events: list[Any] = []
    configure_logging(events.append, level="DEBUG", errors="text")
    try:
        gate = Gate(
            [ask, fail, refuse, pay, count],
            [Audit(), Tracing(tracing)],
            store=f"sqlite:///{folder}/store.db",
            allow_unguarded=True,
            signing_keys=["k" * 32],
        )
        async with gate:
            results = [
                await gate.call(ToolCall(name=name, arguments=arguments), user=user, trace=True)
                for name, arguments in [("ask", {}), ("fail", {}), ("refuse", {}), ("pay", {"cents": 7})]
            ]
            job = await (await gate.submit("count", {}, user=user))
            waiting = [repr(one) for one in await gate.waits.pending(User("max", "acme", {"manager"}))]
    finally:
        configure_logging()
    assert [one.outcome for one in results] == [Outcome.SUCCESS, Outcome.ERROR, Outcome.ERROR, Outcome.SUSPENDED]
    assert job.output == 1
    traces = [span.to_json() for span in spans.get_finished_spans()]
    assert len(traces) > len(results)
    return f"{results!r} {job!r} {waiting} {events!r} {traces} {stored_in(folder)!r}"


async def test_the_token_is_in_no_log_audit_row_span_error_job_or_stored_record(tmp_path: Path) -> None:
    shown = await shown_everywhere(ANN, CANARY, tmp_path)
    assert CANARY not in shown
    assert "the order service refused" in shown, "the error itself is logged"


async def test_the_check_would_see_a_token_that_the_user_does_not_carry(tmp_path: Path) -> None:
    """The control: without the token on the user, the same error shows the same text."""
    assert CANARY in await shown_everywhere(dataclasses.replace(ANN, token=None), CANARY, tmp_path)
