"""The nouns: tools, their calls and results, schemas, hydration."""
