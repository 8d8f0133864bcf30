"""The tool system of threads, and discovery of tools by a model."""
