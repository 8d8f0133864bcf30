"""A small shop: three tools, two users, two hooks, one gate. The example services embed it."""
