"""Receipts: the recorded outcome of an effect, and the response to a repeat."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import orjson

from callgate.errors import ControlRespond, Denied, InvocationError, RetryLater, StoreError, ToolError, ToolFailed
from callgate.runtime.pipeline.failure import error_info
from callgate.tools.calls import Issue
from callgate.tools.values import dump

VERSION = 1

_KINDS: dict[str, type[InvocationError]] = {"tool_error": ToolError, "denied": Denied, "retry_later": RetryLater}
"""Errors that have an outcome of their own; every other error is ``failed``."""


def receipt_of(output: object, error: BaseException | None) -> bytes:
    """Return a receipt as JSON: the output that the caller got, or the public part of the error.

    The data of content blocks is not kept: a repeat gets their kind, MIME type, size and SHA-256.
    """
    if error is None:
        from callgate.providers.content_json import digested, may_hold  # a gate without effects does not load it

        try:
            data = dump(output)
            return b'{"v":1,"output":' + (dump(digested(output)) if may_hold(data) else data) + b"}"
        except (TypeError, ValueError, RecursionError):
            return b'{"v":1,"output":null}'  # an earlier step refused it, or no step reads it
    info = error_info(error)
    body = {
        "kind": next((name for name, kind in _KINDS.items() if isinstance(error, kind)), "failed"),
        "code": info.code,
        "public": info.public,
        "issues": [[one.pointer, one.keyword, one.expected] for one in info.issues],
        "status": info.http_status,
        "retry_after": getattr(error, "retry_after", None),
    }
    return orjson.dumps({"v": VERSION, "error": body})


def answer_from(receipt: bytes | None) -> NoReturn:
    """Answer a repeat with the recorded output or error; the output skips the output stages.

    Raises:
        ControlRespond: the response, with the recorded output.
        InvocationError: the recorded error, or that the effect took place and its output was not recorded.
        StoreError: the receipt is damaged, or another version of Callgate wrote it.
    """
    try:
        kept = json.loads(receipt or b"")  # not orjson: it makes floats of long integers
        if kept["v"] != VERSION:
            raise StoreError("the receipt was written by another version of Callgate")
        if "awaited" in kept:
            raise ToolFailed(
                "the effect was committed; the process ended before it recorded the output",
                code="output_lost",
                public="The call took effect earlier. Its output was not kept. Do not repeat it.",
            )
        if "error" not in kept:
            raise ControlRespond(kept["output"], validate=False, shaped=True)
        recorded = _recorded_error(kept["error"])
    except (ValueError, KeyError, TypeError):
        raise StoreError("the receipt is damaged") from None
    raise recorded


def output_in(receipt: bytes | None) -> object:
    """Return the output in a receipt, or the public part of its error, for display."""
    try:
        kept = json.loads(receipt or b"{}")
    except ValueError:
        return None
    return kept.get("output", kept.get("error"))


def _recorded_error(kept: dict[str, Any]) -> InvocationError:
    kind, code = kept["kind"], kept["code"]
    error: InvocationError
    if kind == "retry_later":
        error = RetryLater(kept["retry_after"], code=code)
    else:
        error = _KINDS.get(kind, ToolFailed)("replayed", code=code)
    error.public = kept["public"]
    error.http_status = kept["status"] or error.http_status
    if kept["issues"]:
        error.issues = tuple(Issue(*one) for one in kept["issues"])  # type: ignore[attr-defined]
    return error
