"""Tool selection before dispatch: it ranks tools by their relevance to a query."""
