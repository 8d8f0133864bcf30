"""The small shop in Django, with plain (sync) views."""
