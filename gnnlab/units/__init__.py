"""What can run a stage: a processor with the runtime that reaches it."""
