"""The gate of this process for sync views."""

from __future__ import annotations

from examples.small_shop.shop import make_gate

tools = make_gate().sync()
