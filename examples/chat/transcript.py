"""Print each event of a conversation when it arrives."""

from __future__ import annotations

import json
import os
from typing import Any

from rich.console import Console
from rich.text import Text

from callgate import Conversation, Outcome, ToolCall, ToolResult
from callgate.models import CallFinished, CallsStarted, ConversationEvent, Ended, ReasoningDelta, TextDelta

WIDTH = 100
COLOURS = {Outcome.SUCCESS: "green", Outcome.DENIED: "magenta", Outcome.INVALID: "yellow"}


class Transcript:
    """Print to standard output; without a terminal, in 100 columns and without colour."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(markup=False, highlight=False, emoji=False)
        if console is None and not self.console.is_terminal and not os.environ.get("COLUMNS"):
            self.console.width = WIDTH
        self.numbers: dict[str, int] = {}
        self.speaking: type[Any] | None = None

    def begins(self, client: str, tools: list[str]) -> None:
        """Print the model, the user and the tools."""
        self.console.print(Text.assemble((client, "bold"), f", tools: {', '.join(tools)}"))

    def said(self, text: str) -> None:
        """Print the person's message."""
        self.console.print(Text.assemble("\n", ("you      ", "bold cyan"), _plain(text)))

    def show(self, event: ConversationEvent) -> None:
        """Print one event."""
        if isinstance(event, TextDelta):
            self._speak(TextDelta, "model    ", event.text, "")
            return
        if isinstance(event, ReasoningDelta):
            self._speak(ReasoningDelta, "thinks   ", event.text, "dim")
            return
        self._silence()
        if isinstance(event, CallsStarted):
            self.numbers = {call.id: number for number, call in enumerate(event.calls, 1)}
            for call in event.calls:
                line = f"{self.numbers[call.id]}. {_plain(call.name)} {_arguments(call)}"
                self.console.print(Text.assemble(("calls    ", "blue"), line))
        elif isinstance(event, CallFinished):
            self._finished(event.result)
        elif isinstance(event, Ended):
            self._ended(event.conversation)

    def _finished(self, result: ToolResult) -> None:
        told = result.error.public if result.error else json.dumps(result.output, ensure_ascii=False)
        outcome = Text(f"{result.outcome:<9}", COLOURS.get(result.outcome, "red"))
        self.console.print(Text.assemble(outcome, f"{self.numbers[result.call_id]}. {_plain(told)}"))

    def _ended(self, conversation: Conversation) -> None:
        usage = conversation.usage
        counted = [f"{conversation.rounds} rounds", f"{len(conversation.calls)} calls"]
        counted += [f"{usage.input} tokens in, {usage.output} out"] if usage.input is not None else []
        self.console.print(Text(f"({conversation.ended}: {', '.join(counted)})", "dim"))
        if conversation.error is not None:
            self.console.print(Text(_plain(str(conversation.error)), "red"))

    def _speak(self, kind: type[Any], who: str, text: str, style: str) -> None:
        if self.speaking is not kind:
            self._silence()
            self.console.print(Text(who, "bold"), end="")
            self.speaking = kind
        self.console.print(Text(_plain(text), style), end="", soft_wrap=True)

    def _silence(self) -> None:
        if self.speaking is not None:
            self.console.print()
            self.speaking = None


def _arguments(call: ToolCall) -> str:
    given = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False)
    return _plain(given)


def _plain(text: str) -> str:
    """Make a model's text safe for a terminal: line breaks are the only control characters."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text)
