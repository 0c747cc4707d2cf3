"""Between text and token ids, without MLX: used by the web process and the worker alike.

``tokenizer.load``
    The tokenizer of a prepared model. It encodes a client's text so that nothing in it becomes a control
    token, whatever it spells (``control_tokens``).
``template.render_chat``
    Messages to the ids of a prompt, by the model's own chat template, in a sandbox with limits
    (``sandbox``, ``template_limits``, ``template_filters``). What the template's author wrote and what a
    client wrote stay apart through every operation (``traced_text``).
``detokenizer.Detokenizer``
    Ids to text, one at a time, never cutting a character; the bytes of each come from ``pieces``.
``stop_strings.StopMatcher``
    Releases text up to the first stop string and never any part of one.
"""
