"""The providers' own Python packages, pointed at a scripted model: what they read, in words of no wire.

One class for each package: ``ask`` sends one request and reads the answer, whole or streamed, with nothing but what the
package offers; ``history`` is what its users append.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import anthropic
import ollama
import openai
import pytest
from google import genai
from google.genai import types as gemini_types
from pydantic import TypeAdapter

KEY = "sk-never-shown"


@dataclass(frozen=True)
class Read:
    """A response as a provider's package reads it. ``opaque`` has the parts that must go back verbatim."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str | None, str, Any], ...] = ()
    usage: tuple[int | None, int | None] = (None, None)
    stop: str | None = None
    opaque: tuple[str, ...] = ()
    history: list[Any] = field(default_factory=list[Any], compare=False)


class Package:
    """A package under test: how most of them begin a history, and close their client."""

    client: Any

    def first(self, text: str) -> list[Any]:
        return [{"role": "user", "content": text}]

    async def close(self) -> None:
        await self.client.close()


class OpenAIChat(Package):
    """``openai``, Chat Completions."""

    wire = "openai_chat"
    stops: ClassVar[dict[str, str]] = {
        "stop": "stop",
        "calls": "tool_calls",
        "length": "length",
        "filter": "content_filter",
    }
    error: type[Exception] = openai.APIError

    def __init__(self, url: str) -> None:
        self.client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)

    async def ask(self, messages: Sequence[Any], tools: dict[str, Any], *, stream: bool) -> Read:
        create: Any = self.client.chat.completions.create
        if not stream:
            answer = await create(model="m", messages=messages, **tools)
            choice = answer.choices[0]
            return self.read(choice.message.model_dump(exclude_none=True), choice.finish_reason, answer.usage)
        message: dict[str, Any] = {"role": "assistant"}
        calls: dict[int, Any] = {}
        stop = usage = None
        chunks = await create(
            model="m", messages=messages, stream=True, stream_options={"include_usage": True}, **tools
        )
        async for chunk in chunks:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                stop = choice.finish_reason or stop
                for name in ("content", "reasoning_content"):
                    if piece := getattr(choice.delta, name, None):
                        message[name] = message.get(name, "") + piece
                for call in choice.delta.tool_calls or ():
                    if call.index not in calls:
                        calls[call.index] = call.model_dump(exclude={"index"})
                    else:
                        calls[call.index]["function"]["arguments"] += call.function.arguments
        if calls:
            message["tool_calls"] = [*calls.values()]
        return self.read(message, stop, usage)

    def read(self, message: dict[str, Any], stop: str | None, usage: Any) -> Read:
        calls = tuple(
            (call["id"], call["function"]["name"], loaded(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        )
        counted = (usage.prompt_tokens, usage.completion_tokens)
        thought = message.get("reasoning_content") or ""
        return Read(message.get("content") or "", thought, calls, counted, stop, (), [message])


class OpenAIResponses(OpenAIChat):
    """``openai``, Responses."""

    wire = "openai_responses"
    stops: ClassVar[dict[str, str]] = {
        "stop": "completed",
        "calls": "completed",
        "length": "max_output_tokens",
        "filter": "content_filter",
    }

    async def ask(self, messages: Sequence[Any], tools: dict[str, Any], *, stream: bool) -> Read:
        create: Any = self.client.responses.create
        more = {"include": ["reasoning.encrypted_content"], "store": False, **tools}
        if not stream:
            return self.answer(await create(model="m", input=messages, **more))
        whole = None
        text = arguments = ""
        async for event in await create(model="m", input=messages, stream=True, **more):
            if event.type in {"response.completed", "response.incomplete"}:
                whole = event.response
            elif event.type == "response.output_text.delta":
                text += event.delta
            elif event.type == "response.function_call_arguments.delta":
                arguments += event.delta
            elif event.type == "error":
                raise openai.APIError(event.message, request=None, body=None)  # type: ignore[arg-type]
        if whole is None:
            raise openai.APIError("no end", request=None, body=None)  # type: ignore[arg-type]
        read = self.answer(whole)
        assert text == read.text
        assert arguments == "".join(item.arguments for item in whole.output if item.type == "function_call")
        return read

    def answer(self, answer: Any) -> Read:
        by = {kind: [item for item in answer.output if item.type == kind] for kind in ("reasoning", "function_call")}
        calls = tuple((item.call_id, item.name, loaded(item.arguments)) for item in by["function_call"])
        thought = "".join(part.text for item in by["reasoning"] for part in item.summary)
        stop = answer.incomplete_details.reason if answer.status == "incomplete" else answer.status
        counted = (answer.usage.input_tokens, answer.usage.output_tokens)
        blobs = tuple(item.encrypted_content for item in by["reasoning"])
        return Read(answer.output_text, thought, calls, counted, stop, blobs, list(answer.output))


class Anthropic(Package):
    """``anthropic``."""

    wire = "anthropic"
    stops: ClassVar[dict[str, str]] = {
        "stop": "end_turn",
        "calls": "tool_use",
        "length": "max_tokens",
        "filter": "refusal",
    }
    error: type[Exception] = anthropic.APIError

    def __init__(self, url: str) -> None:
        self.client = anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0)

    async def ask(self, messages: Sequence[Any], tools: dict[str, Any], *, stream: bool) -> Read:
        asked: Any = {"model": "m", "max_tokens": 64, "messages": messages, **tools}
        if stream:
            async with self.client.messages.stream(**asked) as events:
                async for _ in events:
                    pass
                answer: Any = await events.get_final_message()
        else:
            answer = await self.client.messages.create(**asked)
        by = {
            kind: [block for block in answer.content if block.type == kind] for kind in ("text", "thinking", "tool_use")
        }
        blobs = [getattr(block, "signature", None) or getattr(block, "data", None) for block in answer.content]
        return Read(
            "".join(block.text for block in by["text"]),
            "".join(block.thinking for block in by["thinking"]),
            tuple((block.id, block.name, block.input) for block in by["tool_use"]),
            (answer.usage.input_tokens, answer.usage.output_tokens),
            answer.stop_reason,
            tuple(blob for blob in blobs if blob),
            [{"role": "assistant", "content": answer.content}],
        )


class Gemini(Package):
    """``google-genai``."""

    wire = "gemini"
    stops: ClassVar[dict[str, str]] = {"stop": "STOP", "calls": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY"}
    error: type[Exception] = genai.errors.APIError

    def __init__(self, url: str) -> None:
        self.client = genai.Client(api_key=KEY, http_options=gemini_types.HttpOptions(base_url=url))

    def first(self, text: str) -> list[Any]:
        return [{"role": "user", "parts": [{"text": text}]}]

    async def ask(self, messages: Sequence[Any], tools: dict[str, Any], *, stream: bool) -> Read:
        off = gemini_types.AutomaticFunctionCallingConfig(disable=True)
        config = gemini_types.GenerateContentConfig(automatic_function_calling=off, **tools)
        models: Any = self.client.aio.models
        asked: Any = {"model": "m", "contents": list(messages), "config": config}
        if stream:
            answers = [answer async for answer in await models.generate_content_stream(**asked)]
        else:
            answers = [await models.generate_content(**asked)]
        parts = [part for answer in answers for part in answer.candidates[0].content.parts or ()]
        calls = [part.function_call for part in parts if part.function_call]
        counted = answers[-1].usage_metadata
        kept = [part for part in parts if part.text != "" or part.thought_signature]
        return Read(
            "".join(part.text for part in parts if part.text and not part.thought),
            "".join(part.text for part in parts if part.text and part.thought),
            tuple((call.id, call.name, call.args) for call in calls),
            (counted.prompt_token_count, counted.candidates_token_count),
            answers[-1].candidates[0].finish_reason.value,
            tuple(part.thought_signature for part in parts if part.thought_signature),
            [gemini_types.Content(role="model", parts=kept)],
        )

    async def close(self) -> None:
        await self.client.aio.aclose()
        self.client.close()


class Ollama(Package):
    """``ollama``."""

    wire = "ollama"
    stops: ClassVar[dict[str, str]] = {"stop": "stop", "calls": "stop", "length": "length", "filter": "stop"}
    error: type[Exception] = ollama.ResponseError

    def __init__(self, url: str) -> None:
        self.client = ollama.AsyncClient(host=url)

    async def ask(self, messages: Sequence[Any], tools: dict[str, Any], *, stream: bool) -> Read:
        chat: Any = self.client.chat
        if stream:
            answers = [answer async for answer in await chat(model="m", messages=messages, stream=True, **tools)]
        else:
            answers = [await chat(model="m", messages=messages, **tools)]
        found = [answer.message for answer in answers]
        calls = [call for message in found for call in message.tool_calls or ()]
        text = "".join(message.content or "" for message in found)
        last = answers[-1]
        history = {"role": "assistant", "content": text, "tool_calls": [call.model_dump() for call in calls]}
        return Read(
            text,
            "".join(message.thinking or "" for message in found),
            tuple((None, call.function.name, call.function.arguments) for call in calls),  # it drops the ids
            (last.prompt_eval_count, last.eval_count),
            last.done_reason,
            (),
            [history],
        )

    async def close(self) -> None:
        await self.client._client.aclose()


PACKAGES: dict[str, Any] = {kind.wire: kind for kind in (OpenAIChat, OpenAIResponses, Anthropic, Gemini, Ollama)}
each_package = pytest.mark.parametrize("wire", PACKAGES)
each_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def loaded(arguments: str) -> Any:
    """Arguments as a value, or as the text that they are."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


@cache
def tool_types(wire: str) -> Any:
    """A validator of one tool of this wire, made of the package's own types."""
    from anthropic.types import ToolParam
    from openai.types.chat import ChatCompletionFunctionToolParam
    from openai.types.responses import FunctionToolParam

    kinds: dict[str, Any] = {
        "openai_chat": ChatCompletionFunctionToolParam,
        "openai_responses": FunctionToolParam,
        "anthropic": ToolParam,
        "gemini": gemini_types.Tool,
        "ollama": ollama.Tool,
    }
    return TypeAdapter(kinds[wire])


@cache
def message_types(wire: str) -> Any:
    """A validator of one message or input item with results."""
    from anthropic.types import MessageParam
    from openai.types.chat import ChatCompletionToolMessageParam
    from openai.types.responses.response_input_param import FunctionCallOutput

    kinds: dict[str, Any] = {
        "openai_chat": ChatCompletionToolMessageParam,
        "openai_responses": FunctionCallOutput,
        "anthropic": MessageParam,
        "gemini": gemini_types.Content,
        "ollama": ollama.Message,
    }
    return TypeAdapter(kinds[wire])


@cache
def answer_types(wire: str, *, stream: bool) -> Any:
    """A validator of a response or a stream event, made of the package's own types."""
    from anthropic.types import Message, RawMessageStreamEvent
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.responses import Response, ResponseStreamEvent

    kinds: dict[str, tuple[Any, Any]] = {
        "openai_chat": (ChatCompletion, ChatCompletionChunk),
        "openai_responses": (Response, ResponseStreamEvent),
        "anthropic": (Message, RawMessageStreamEvent),
        "gemini": (gemini_types.GenerateContentResponse, gemini_types.GenerateContentResponse),
        "ollama": (ollama.ChatResponse, ollama.ChatResponse),
    }
    return TypeAdapter(kinds[wire][stream])
