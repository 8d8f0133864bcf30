"""Serve the desk of the tests over stdio, in Ann's name."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))

from tests.runtime.hosts.mcp.world import Desk, server_of

if __name__ == "__main__":
    print("a tool that prints must not break the protocol")
    asyncio.run(server_of(Desk().gate(), "stdio").run_stdio())
