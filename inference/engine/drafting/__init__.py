"""Drafters: they guess a sequence's next tokens, and the model confirms them (``inference.engine.speculative``).

``drafter``
    What a drafter is: bound to one sequence at a time, and wholly by that sequence's own tokens.
``prompt_lookup``
    Copies from further up in the sequence, by a ``context_index`` that grows with it.
``pool_drafter``
    Backs off over n-gram counts: of the sequence itself, then of a ``suffix_pool`` of its tenant's, then of a neutral
    one. ``pool_store`` hands the pools out and saves them, ``pool_files`` is how they lie on disk.
``neutral_pool``, ``neutral_building``
    The pool that serves everybody: which one a model uses, and how one is made.
``draft_model``
    A small model of the same tokenizer. Only this module imports MLX.
``sessions``
    What a drafter keeps of the last few sequences, to bind them again at little cost.

Which of them a model has, and what makes it, is in ``inference.worker.drafting``.
"""
