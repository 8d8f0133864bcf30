"""HTTP bodies that come in: their limits, and the readers of replies. Pure, but for the transport."""
