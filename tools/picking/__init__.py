"""Selection before dispatch: which of many tools fit what is asked (contract 62-70, C32)."""
