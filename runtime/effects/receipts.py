"""What the ledger remembers of how an effect ended, and how a repeat is answered with it."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import orjson

from callgate.errors import ControlRespond, Denied, InvocationError, RetryLater, StoreError, ToolError, ToolFailed
from callgate.runtime.call.failure import error_info
from callgate.tools.calls import Issue
from callgate.tools.values import dump

VERSION = 1

_KINDS: dict[str, type[InvocationError]] = {"tool_error": ToolError, "denied": Denied, "retry_later": RetryLater}
"""Errors whose outcome is not that of any other failure."""


def receipt_of(output: Any, error: BaseException | None) -> bytes:
    """A receipt as JSON: the output as the caller got it, or what the caller was told of the error."""
    if error is None:
        try:
            return b'{"v":1,"output":' + dump(output) + b"}"
        except (TypeError, ValueError, RecursionError):
            return b'{"v":1,"output":null}'  # it was refused as no JSON before, or is not looked at by anybody
    told = error_info(error)
    body = {
        "kind": next((name for name, kind in _KINDS.items() if isinstance(error, kind)), "failed"),
        "code": told.code,
        "public": told.public,
        "issues": [[one.pointer, one.keyword, one.expected] for one in told.issues],
        "status": told.http_status,
        "retry_after": getattr(error, "retry_after", None),
    }
    return orjson.dumps({"v": VERSION, "error": body})


def answer_from(receipt: bytes | None) -> NoReturn:
    """Answer a repeat: with the output, which passes no output stage a second time, or with the error.

    Raises:
        ControlRespond, ToolFailed: so.
        StoreError: it is no receipt.
    """
    try:
        kept = json.loads(receipt or b"")  # not orjson: it makes floats of long integers
        if kept["v"] != VERSION:
            raise StoreError("the receipt was written by another version of Callgate")
        if "error" not in kept:
            raise ControlRespond(kept["output"], validate=False, shaped=True)
        told = _told(kept["error"])
    except (ValueError, KeyError, TypeError):
        raise StoreError("the receipt is damaged") from None
    raise told


def output_in(receipt: bytes | None) -> Any:
    """The output that a receipt holds, or what was told of the error, for people."""
    try:
        kept = json.loads(receipt or b"{}")
    except ValueError:
        return None
    return kept.get("output", kept.get("error"))


def _told(kept: dict[str, Any]) -> InvocationError:
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
