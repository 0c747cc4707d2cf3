"""Drafters: they guess a sequence's next tokens, and the model confirms them (``inference.engine.speculative``)."""
