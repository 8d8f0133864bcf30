"""A server, without the SDK, whose results take a parser much memory: ``heavy_server.py stdio``, ``json`` or ``events``.

A call of ``act`` says which result it gets; with ``list``, the next list of tools is that one.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

ASKS = '{"resultType":"input_required","requestState":"s","inputRequests":{@}}'
CREATE = '"a":{"method":"sampling/createMessage","params":{"maxTokens":1,"messages":[{"role":"user","content":[@]}]}}'
FORM = '{"method":"elicitation/create","params":{"mode":"form","message":"","requestedSchema":{"type":"object","properties":{}}}}'
TEXT = '{"content":[{"type":"text","text":"@"}]}'
ACT = '{"name":"act","inputSchema":{"type":"object"}}'
KINDS: dict[str, tuple[str, str]] = {  # a result, and what is in place of @: ``x``, or ``"KEY":x``, or characters
    "blocks": ('{"content":[@]}', '{"type":"text","text":""}'),
    "empty blocks": ('{"content":[@]}', "{}"),
    "broken blocks": ('{"content":[@]}', '{"type":"resource","resource":{}}'),
    "icons": ('{"content":[{"type":"resource_link","name":"","uri":"a:b","icons":[@]}]}', "0"),
    "structure": ('{"content":[],"structuredContent":{"a":[@]}}', "{}"),
    "keys": ('{"content":[],"structuredContent":{@}}', '"KEY":1'),
    "levels": ('{"content":[],"structuredContent":{"a":[@]}}', "[" * 50 + "]" * 50),
    "unknown members": ('{"content":[],"x":[@]}', "{}"),
    "questions": (ASKS.replace("@", CREATE), "{}"),
    "empty questions": (ASKS, '"KEY":{}'),
    "forms": (ASKS, f'"KEY":{FORM}'),
    "text": (TEXT, "x"),
    "image": ('{"content":[{"type":"image","mimeType":"image/png","data":"@"}]}', "A"),
    "wide text": (TEXT.replace("@", "\U0001f600@"), "x"),
    "escaped text": (TEXT.replace("@", "\\ud83d\\ude00@"), "x"),
    "quotes": (TEXT, '\\"'),
    "tools": (f'{{"tools":[{ACT},@]}}', '{"name":"aKEY","inputSchema":{"type":"object"},"annotations":{},"_meta":{}}'),
    "one tool": (f'{{"tools":[{ACT}]}}', ""),
    "empty tools": ('{"tools":[@]}', "{}"),
    "requirements": (f'{{"tools":[{ACT},' + '{"name":"a","inputSchema":{"type":"object","required":[@]}}]}', "0"),
}


def result(kind: str, n: int) -> str:
    """A result with *n* items."""
    template, item = KINDS[kind]
    if item in ("x", "A", '\\"'):
        return template.replace("@", item * (n - n % 4))
    return template.replace("@", ",".join(item.replace("KEY", str(number)) for number in range(n)))


KNOWN = {
    "initialize": '{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}',
    "server/discover": '{"cacheScope":"private","ttlMs":0,"capabilities":{"tools":{}},"supportedVersions":["2026-07-28"]}',
    "tools/list": f'{{"tools":[{ACT}]}}',
}


def answer(asked: dict[str, Any], known: dict[str, str]) -> bytes:
    """The response to a request; nothing for a notification."""
    if "id" not in asked:
        return b""
    method, params = asked["method"], asked.get("params") or {}
    given = params.get("arguments") or {}
    text = result(given["kind"], given["n"]) if "kind" in given else known.get(method, '{"content":[]}')
    if "list" in given:
        known["tools/list"] = result(given["list"], given["n"])
    if "io.modelcontextprotocol/protocolVersion" in params.get("_meta", {}) and '"resultType"' not in text:
        text = text.replace("{", '{"resultType":"complete","cacheScope":"private","ttlMs":0,', 1)
    return f'{{"jsonrpc":"2.0","id":{json.dumps(asked["id"])},"result":{text}}}'.encode()


def serve_stdio() -> None:
    """Answer each line with a line."""
    known = dict(KNOWN)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(answer(json.loads(line), known) + b"\n")
        sys.stdout.buffer.flush()


def serve_http(events: bool) -> None:
    """Answer each request on a connection of its own, one after another."""
    known = dict(KNOWN)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as stream:
                head = iter(stream.readline, b"\r\n")
                post = next(head, b"").startswith(b"POST")
                length = sum(int(one.split(b":")[1]) for one in head if one.lower().startswith(b"content-length"))
                body = answer(json.loads(stream.read(length)), known) if post else b""
                kind, status = b"application/json", b"200 OK" if body else b"202 Accepted" if post else b"405 No"
                if events and body:
                    kind, body = b"text/event-stream", b"event: message\ndata: " + body + b"\n\n"
                start = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
                try:
                    connection.sendall(start % (status, kind, len(body)) + body)
                except OSError:  # the client has refused the rest
                    continue


if __name__ == "__main__":
    serve_stdio() if sys.argv[1] == "stdio" else serve_http(sys.argv[1] == "events")
