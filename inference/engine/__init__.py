"""The model at work. A tour, in the order in which a worker meets it:

``blas``
    Before MLX is imported: on a Linux CPU, load a BLAS that is worth its name (``openblas_wheel`` brings one).
``preparation``
    From what an operator has (a hub id, a GGUF file, a directory) to a *prepared model directory*.
``model_loading``
    From a prepared directory to a model: weights and configuration only, never code.
``cpu_attention``
    On a Linux CPU, attention whose exponentials cost a third.
``engine.Engine``
    Owns the model, on one thread. Sequences are admitted, prefilled chunk by chunk, decoded together and
    dropped; each call of ``prefill``, ``decode``, ``slice_zero`` or ``speculate`` is one model action. When a
    sequence ends is its caller's decision.
``batch``
    mlx-lm's two batch primitives, made to act once a tick: decoding stays one step ahead, so that the
    device computes while Python publishes.
``row``, ``row_batches``
    What is known of one sequence: enough to run it again from nothing; and what does so.
``prefilling``, ``decoding_rows``
    The two classic actions. What fails together is run again alone: prompts at once, rows that decode a chunk a step.
``speculative``, ``drafting``
    A sequence that decodes several tokens in a forward pass, because a drafter guessed them; and the drafters.
``prefix_cache``, ``row_prefixes``
    What was run of a sequence is kept, and the next one of its tenant that begins alike starts behind it.
    The first is a tree of tokens and arrays and knows no batch; the second takes rows out of batches and puts them in.
``kv_growth``
    What a sequence's caches take, measured on the model's own.
``sampling``, ``penalties``
    How each row's next token is drawn, from its seed and position alone.

Three promises, each with its tests. *The same tokens*: a sequence gets the tokens it would get alone, whoever
else is in the batch, however its prompt was cut, resumed or not, its prefix cached or not (bit by bit on the
stock CPU build; on other backends as far as their logits are the same), and whatever a drafter guessed. *A
fault costs its own sequence only*: what fails together is run again alone, and a drafter's faults cost guesses.
*Nothing for nobody*: log-probabilities of a whole vocabulary are not computed unless someone asks.

This package is imported by the worker and by the preparation of models, never by the web process.
Importing it imports neither MLX nor anything else.
"""
