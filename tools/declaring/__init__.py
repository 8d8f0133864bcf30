"""Declaration of tools: functions, classes and executors."""
