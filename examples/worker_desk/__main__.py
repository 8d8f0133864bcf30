"""``python -m examples.worker_desk [--calls N] [--on postgresql|sqlite]``."""

from __future__ import annotations

from examples.worker_desk.app import main

raise SystemExit(main())
