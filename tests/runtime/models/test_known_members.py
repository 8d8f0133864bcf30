"""Nothing unknown: every item, part, delta, event, field and stop reason of the official packages has a stated handling.

The packages are walked, so that a new version with a new member fails here, and nowhere else. Each member is built as
small as its type allows, read whole and streamed, and must do what the table of its wire states.
"""

from __future__ import annotations

import json
import typing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import anthropic.types as claude
import anthropic.types.beta as claude_beta
import ollama
import openai.types.chat as gpt
import pytest
from google.genai import types as google
from openai.types import responses
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from openai.types.responses.response import IncompleteDetails
from pydantic import BaseModel

from callgate.runtime.models import codec
from callgate.runtime.models.wire.endings import ReplyEnding
from callgate.runtime.models.wire.members import Handling, Members, members
from callgate.runtime.models.wire.reply import Reply
from tests.runtime.models.streaming import chat_chunk, decode, lines, reply_of, sse
from tests.runtime.models.wires import answered, chat, gemini, message, response
from tests.runtime.models.wires import ollama as ollama_body

PREFERRED = ("completed", "client", "function_call", "tool_use", "input_json_delta")
"""Members of unions and of literals that are taken before others: a call, and what is complete."""


def parts_of(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, an optional or an annotated type; the type itself if it is none of them."""
    if hasattr(annotation, "__metadata__"):
        return parts_of(annotation.__origin__)
    if typing.get_origin(annotation) is typing.Union or type(annotation).__name__ == "UnionType":
        inner = (parts_of(one) for one in typing.get_args(annotation) if one is not type(None))
        return tuple(one for part in inner for one in part)
    return (annotation,)


def literals(annotation: Any) -> list[str]:
    """All texts of the literals in a type."""
    found = [list(typing.get_args(one)) for one in parts_of(annotation) if typing.get_origin(one) is typing.Literal]
    return [word for words in found for word in words]


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models of a union, also of a list of one."""
    for part in parts_of(annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield part
        elif typing.get_origin(part) in (list, Sequence):
            yield from models_in(typing.get_args(part)[0])


def kinds(union: Any) -> dict[str, type[BaseModel]]:
    """The values of ``type`` of all members of a union of models, and the model of each."""
    return {kind: model for model in models_in(union) for kind in literals(model.model_fields["type"].annotation)}


def preferred(choices: Sequence[Any]) -> Any:
    named = {one: [one] if isinstance(one, str) else _types(one) for one in choices}
    return next((one for want in PREFERRED for one in choices if want in named[one]), choices[0])


def _types(model: Any) -> list[str]:
    return literals(model.model_fields["type"].annotation) if "type" in getattr(model, "model_fields", {}) else []


def instance(annotation: Any, name: str = "") -> Any:
    """The smallest JSON value of a type. A model without required fields has all that are no models."""
    kind = preferred(parts_of(annotation))
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return preferred(typing.get_args(kind))
    if origin in (list, Sequence):
        return [instance(typing.get_args(kind)[0])]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return built(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind)).value
    text = '{"a": 1}' if name in ARGUMENTS else "x"
    return {int: 1, float: 1.0, bool: name == "thought", bytes: "eA==", str: text}.get(kind, {})


ARGUMENTS = {"arguments", "input", "partial_json"}


def built(model: type[BaseModel], **given: Any) -> dict[str, Any]:
    """The smallest instance of a model, which the model accepts."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    wanted = {name for name, field in fields.items() if field.is_required()}
    wanted = wanted or {name for name, field in fields.items() if not any(models_in(field.annotation))}
    value = {name: given[name] if name in given else instance(fields[name].annotation, name) for name in wanted}
    model.model_validate(value)
    return value


class Known(NamedTuple):
    """One member of a package: its kind, and an answer that has nothing else, whole and streamed."""

    wire: str
    kind: str
    whole: dict[str, Any] | None
    streamed: bytes
    without: bytes | None = None
    """The stream without an event, for a member that is one."""


# ---------------------------------------------------------------------- openai


def response_stream(*chunks: dict[str, Any], output: Sequence[Any] = ()) -> bytes:
    events = [{"type": "response.created", "response": {"id": "r"}}, *chunks]
    events.append({"type": "response.completed", "response": response(*output, id="r")})
    return sse(*({**event, "sequence_number": number} for number, event in enumerate(events)))


def of_responses() -> Iterator[Known]:
    def known(kind: str, item: dict[str, Any]) -> Known:
        added, done = ({"type": f"response.output_item.{name}", "output_index": 0, "item": item} for name in NAMES)
        return Known("openai_responses", kind, response(item), response_stream(added, done, output=[item]))

    for kind, model in kinds(responses.ResponseOutputItem).items():
        yield known(kind, built(model, type=kind))
    for holder in (responses.ResponseOutputMessage, responses.ResponseReasoningItem):
        for name in ("content", "summary"):
            for part in models_in(holder.model_fields[name].annotation) if name in holder.model_fields else ():
                (kind,) = _types(part)
                yield known(kind, {**built(holder), "summary": [], name: [built(part)]})
    for kind, model in kinds(responses.ResponseStreamEvent).items():
        yield Known("openai_responses", kind, None, response_stream(built(model, type=kind)), response_stream())


NAMES = ("added", "done")


def of_chat() -> Iterator[Known]:
    def known(kind: str, name: str, value: Any) -> Known:
        delta = {name: [{"index": 0, **one} for one in value] if name == "tool_calls" else value}
        return Known(
            "openai_chat", kind, chat(finish="stop", **{name: value}), sse(chat_chunk(**delta), chat_chunk("stop"))
        )

    for name, field in (ChoiceDelta.model_fields | gpt.ChatCompletionMessage.model_fields).items():
        yield known(name, name, instance(field.annotation, name))
    for kind, model in kinds(gpt.ChatCompletionMessageToolCallUnion).items():
        yield known(kind, "tool_calls", [built(model, type=kind)])


# ---------------------------------------------------------------------- anthropic

START: dict[str, Any] = {"type": "message_start", "message": {}}
STOP: list[dict[str, Any]] = [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}]
GROWS = {"citations_delta": "text", "signature_delta": "thinking", "compaction_delta": "compaction"}
"""Deltas that only go on with a block, and its type."""


def of_anthropic() -> Iterator[Known]:
    def known(kind: str, *chunks: dict[str, Any]) -> Known:
        streamed = sse(*([] if kind == "message_start" else [START]), *chunks, *STOP)
        return Known("anthropic", kind, None, streamed, sse(START, *STOP))

    def begun(block: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_start", "index": 0, "content_block": block}

    for union in (claude.ContentBlock, claude_beta.BetaContentBlock):
        for kind, model in kinds(union).items():
            block = built(model, type=kind)
            yield known(kind, begun(block))._replace(whole=message(block, stop="end_turn"))
    for union in (claude.RawContentBlockDelta, claude_beta.BetaRawContentBlockDelta):
        for kind, model in kinds(union).items():
            blocks = [begun({"type": GROWS[kind]})] if kind in GROWS else []
            delta = {"type": "content_block_delta", "index": 0, "delta": built(model, type=kind)}
            yield known(kind, *blocks, delta)
    for union in (claude.RawMessageStreamEvent, claude_beta.BetaRawMessageStreamEvent):
        for kind, model in kinds(union).items():
            yield known(kind, {**built(model, type=kind), "index": 0})


# ---------------------------------------------------------------------- google-genai, ollama


def of_gemini() -> Iterator[Known]:
    for name, field in google.Part.model_fields.items():
        part = {field.alias or name: instance(field.annotation, name), **({"text": "x"} if name == "thought" else {})}
        google.Part.model_validate(part)
        yield Known("gemini", field.alias or name, gemini(part), sse(gemini(part)))


def of_ollama() -> Iterator[Known]:
    for name, field in ollama.Message.model_fields.items():
        body = ollama_body(**{name: instance(field.annotation, name)})
        yield Known("ollama", name, body, lines(body))


KNOWN = [*of_responses(), *of_chat(), *of_anthropic(), *of_gemini(), *of_ollama()]
NO_CONTENT = {Handling.HISTORY, Handling.METADATA, Handling.MARK, Handling.IGNORED}


def observed(reply: Reply) -> Handling | None:
    """What the codec did with the only member of an answer; None if it gave no content."""
    done: dict[Handling, object] = {
        Handling.FAILED: reply.error,
        Handling.CALL: reply.calls,
        Handling.WAITING: reply.waiting,
        Handling.PROVIDER_RAN: reply.provider_ran,
        Handling.REFUSAL: reply.text and reply.ending is ReplyEnding.REFUSED,
        Handling.TEXT: reply.text,
        Handling.REASONING: reply.reasoning,
        Handling.MEDIA: reply.ending is ReplyEnding.DONE,
    }
    return next((handling for handling, found in done.items() if found), None)


def faults(known: Known, table: Members) -> list[str]:
    """Where the codec does not do with a member what the table of the wire states."""
    stated = table.get(known.kind)
    if stated is None:
        return [f"{known.wire} states no handling of {known.kind}"]
    expected = None if stated in NO_CONTENT else Handling.CALL if stated is Handling.ENVELOPE else stated
    events = decode(known.wire, [known.streamed])
    replies = {"streamed": reply_of(events)}
    if known.whole is not None:
        replies["whole"] = codec(known.wire).reply(known.whole)
    found = [
        f"{known.kind}, {way}: {observed(reply)} is not {expected}"
        for way, reply in replies.items()
        if observed(reply) is not expected
    ]
    if len({(reply.ending, *(call.name for call in reply.calls)) for reply in replies.values()}) > 1:
        found.append(f"{known.kind}: whole and streamed differ: {replies}")
    if stated is Handling.HISTORY and known.whole is not None:
        found += [
            f"{known.kind}, {way}: not in the history"
            for way, reply in replies.items()
            if f'"{known.kind}"' not in json.dumps(reply.messages)
        ]
    if stated is Handling.IGNORED and known.without is not None and events != decode(known.wire, [known.without]):
        found.append(f"{known.kind} is not ignored")
    return found


@pytest.mark.parametrize("known", KNOWN, ids=lambda one: f"{one.wire}-{one.kind}")
def test_every_member_of_the_official_packages_is_handled_as_its_wire_states(known: Known) -> None:
    table: Members = codec(known.wire).members  # type: ignore[attr-defined]
    assert faults(known, table) == []


def test_the_packages_were_walked() -> None:
    counts = Counter(known.wire for known in KNOWN)
    assert counts >= Counter(openai_responses=85, openai_chat=9, anthropic=40, gemini=19, ollama=6), counts


def test_a_member_without_a_handling_and_one_with_another_handling_are_found() -> None:
    """The control."""
    for known in KNOWN:
        table: Mapping[str, Handling] = codec(known.wire).members  # type: ignore[attr-defined]
        assert faults(known, {kind: one for kind, one in table.items() if kind != known.kind})
        for other in Handling:
            same = {other, table[known.kind]} <= NO_CONTENT or {other, table[known.kind]} == {
                Handling.CALL,
                Handling.ENVELOPE,
            }
            assert same or other is table[known.kind] or faults(known, {**table, known.kind: other}), (
                known.kind,
                other,
            )
    with pytest.raises(ValueError, match="both"):
        members(call="x", text="x")


# ---------------------------------------------------------------------- stop reasons

REASONS: dict[str, list[str]] = {
    "openai_chat": literals(Choice.model_fields["finish_reason"].annotation),
    "openai_responses": [
        *literals(responses.Response.model_fields["status"].annotation),
        *literals(IncompleteDetails.model_fields["reason"].annotation),
    ],
    "anthropic": [*typing.get_args(claude.StopReason), *typing.get_args(claude_beta.BetaStopReason)],
    "gemini": [one.value for one in (*google.FinishReason, *google.BlockedReason)],
}


@pytest.mark.parametrize("wire", REASONS)
def test_every_stop_reason_of_the_official_packages_has_an_ending(wire: str) -> None:
    assert len(REASONS[wire]) > 4
    endings: Mapping[str, ReplyEnding] = codec(wire).endings  # type: ignore[attr-defined]
    unfinished = {"queued", "in_progress"}
    assert set(REASONS[wire]) - set(endings) <= unfinished, "add them to the table of the wire"
    for reason in REASONS[wire]:
        body = answered(wire, reason, calls=False, text="hi")
        ending = codec(wire).reply(body).ending
        promised = endings.get(reason, ReplyEnding.LOST)
        assert ending is (ReplyEnding.FAILED if promised is ReplyEnding.CALLS else promised), reason
        assert reply_of(decode(wire, [json.dumps(body).encode()])).ending is ending, reason


def test_ollama_types_no_done_reasons_and_an_unknown_one_is_lost() -> None:
    assert literals(ollama.ChatResponse.model_fields["done_reason"].annotation) == []
    assert codec("ollama").reply(answered("ollama", "a_new_reason", calls=False, text="hi")).ending is ReplyEnding.LOST
