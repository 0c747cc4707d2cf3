"""One sequence that decodes several tokens in a forward pass: a drafter guesses them, the model confirms.

``session``
    The sequence on caches of its own: a block of guesses goes in, and what plain decoding would have said comes out.
``verification``
    What plain decoding draws at each position of a block.
``rollback``
    Which caches can give back what a wrong guess left in them.
``rounds``
    One round: guess, confirm, and what becomes of whichever of the two fails.
``drafter_handle``
    The one drafter that all sequences share: taken, returned and made again by one path.

*The output is plain decoding's.* The random key of a token derives from its sequence's seed and its position alone
(``inference.engine.sampling``). So what is drawn from the logits of a block, each position with its own key, its own
penalties and its own processors, are the tokens that one step after another would draw, as long as the guesses
before them equal these. A guess is never judged by its probability: it is right or wrong. How good the drafter is
decides how fast a sequence is, and nothing else. Bit by bit this holds where the backend's logits do not depend on
how many tokens a block has, as in the stock CPU build; elsewhere (Metal's quantized kernels, other BLAS) as far as
near-ties go.
"""
