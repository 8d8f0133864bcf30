"""Services for tools and hooks: dependency injection, stores, logs, clocks and principals."""
