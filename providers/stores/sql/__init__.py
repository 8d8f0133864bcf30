"""The store in PostgreSQL and SQLite."""
