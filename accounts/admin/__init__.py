"""The operator's view of accounts."""
