"""The gate of this process, for views: plain functions that wait."""

from __future__ import annotations

from examples.small_shop.shop import make_gate

tools = make_gate().sync()
