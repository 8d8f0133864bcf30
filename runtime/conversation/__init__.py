"""Conversations: ask a model, run the calls it makes, answer it."""
