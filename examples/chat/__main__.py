"""``python -m examples.chat [--message TEXT] [--wire WIRE]``."""

from __future__ import annotations

from examples.chat.app import main

raise SystemExit(main())
