"""The items of an answer that are no calls of the gate's tools: those that the provider ran, and those that wait."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from callgate.errors import Denied
from callgate.providers.kinds import truth
from callgate.providers.logs import LogEvent, emit
from callgate.runtime.gate.invoker import Invoker
from callgate.runtime.models.wire.codec import ApprovalCodec, Codec
from callgate.runtime.pipeline.options import CallOptions
from callgate.tools.calls import ToolCall, User

Decide: TypeAlias = Callable[[Mapping[str, object]], Awaitable[bool | None] | bool | None]
"""Decides about an item of ``Reply.waiting`` that asks for an approval: True, False, or None to leave it waiting."""

_OUTPUTS = frozenset({"content", "encrypted_content", "output", "outputs", "result", "results", "tools"})
_RESULTS = frozenset({"codeExecutionResult", "tool_use_id", "toolResponse"})
"""Members of the results that Anthropic and Gemini send beside the calls."""


def call_of_item(item: Mapping[str, object], wire: str) -> ToolCall:
    """Return an item as a call, for records: its name begins with the wire, and its output is left out."""
    kind = item.get("type") or next(iter(item), "")
    names = (wire, kind, item.get("server_label") or item.get("server_name"), item.get("name"))
    given = {key: value for key, value in item.items() if key not in _OUTPUTS}
    made = item.get("call_id") or item.get("id")
    name = ".".join(str(name) for name in names if name)
    return ToolCall(name=name, arguments=given, id=made if isinstance(made, str) else None)


@dataclass(frozen=True, slots=True)
class ProviderItems:
    """Records and answers such items for one conversation; ``until`` is its deadline by the loop's clock."""

    gate: Invoker
    user: User
    codec: Codec
    ids: CallOptions
    decide: Decide | None
    until: float | None

    async def record(self, ran: Sequence[Mapping[str, object]]) -> None:
        """Record the calls that the provider ran, in the audit log of the gate; their results have no row."""
        for item in (item for item in ran if _RESULTS.isdisjoint(item)):
            await self.gate.record_elsewhere(call_of_item(item, self.codec.name), user=self.user, **self.ids)

    async def answer(
        self, waiting: Sequence[Mapping[str, object]]
    ) -> tuple[list[dict[str, object]], list[Mapping[str, object]]]:
        """Return the messages that answer items which ask for an approval, and the items that still wait."""
        messages: list[dict[str, object]] = []
        left: list[Mapping[str, object]] = []
        for item in waiting:
            if (message := await self._answer(item)) is None:
                left.append(item)
            else:
                messages.append(message)
        return messages, left

    async def _answer(self, item: Mapping[str, object]) -> dict[str, object] | None:
        """Return the message with the decision about an item, which is recorded; None leaves it waiting."""
        if not isinstance(self.codec, ApprovalCodec) or self.codec.decision(item, False) is None:
            return None
        approve = await self._decided(item)
        if approve is None:
            return None
        call = call_of_item(item, self.codec.name)
        if approve:
            await self.gate.record_elsewhere(call, user=self.user, **self.ids)
        else:
            await self.gate.refuse(call, Denied("the conversation declined the approval"), user=self.user, **self.ids)
        return self.codec.decision(item, approve)

    async def _decided(self, item: Mapping[str, object]) -> bool | None:
        """Return the decision; a function that fails, or that the deadline stops, decides nothing."""
        if self.decide is None:
            return None
        limit = asyncio.timeout_at(self.until)
        try:
            async with limit:
                answer = self.decide(item)
                answer = await answer if inspect.isawaitable(answer) else answer
                return None if answer is None else truth("converse", "decide", answer)
        except Exception as error:  # noqa: BLE001  (calls have run, and their history must not be lost)
            if not limit.expired():
                emit(LogEvent.PROVIDER_FAILED, provider="decide", phase="approval", error=error)
            return None
