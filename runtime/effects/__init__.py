"""The effect ledger: each effect is recorded before and after it runs."""
