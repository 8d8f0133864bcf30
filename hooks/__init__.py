"""What happens around a tool: stages, hooks, context, plan."""
