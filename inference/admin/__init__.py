"""The operator's view of inference."""
