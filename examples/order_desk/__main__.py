"""``python -m examples.order_desk [--db FILE | --input FILE]``."""

from __future__ import annotations

from examples.order_desk.app import main

raise SystemExit(main())
