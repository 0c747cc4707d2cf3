"""The sandbox in which chat templates run.

A template comes with a model, so it is a stranger's program. Jinja's immutable sandbox keeps it from our
objects; the limits keep it from our time and memory: every loop turn and call is counted
(``template_limits``), every result has a largest size, and what makes large strings out of small ones
(widths, repetition, powers) is bounded or absent.

String constants of the template are traced as literal (``traced_text``), everything else is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference.tokenization import template_filters
from inference.tokenization.template_limits import (
    TemplateError,
    TemplateProblem,
    bounded,
    check_bits,
    check_size,
    concatenated,
    spend_step,
    text,
)
from inference.tokenization.traced_text import TracedText

#: Jinja's own filters that chat templates use and that make nothing larger than what they are given.
_JINJA_FILTERS: Final = """
    abs capitalize count d default dictsort first float groupby int items last length list lower map max min
    reject rejectattr reverse round select selectattr sort title trim unique upper wordcount
"""
#: Methods that make a string of any size from a few characters.
_UNBOUNDED_METHODS: Final = frozenset(
    {"center", "expandtabs", "format", "format_map", "ljust", "rjust", "zfill"}
)


class ChatTemplateEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it (the settings of the models' publishers), within limits."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    # Called by the generated code.
    concat = staticmethod(concatenated)
    literal = staticmethod(TracedText.literal)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=text,
            # Folding constants would join strings before they are traced.
            optimized=False,
            extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
        )
        self.code_generator_class = _TracingCodeGenerator
        self.filters = {name: self.filters[name] for name in _JINJA_FILTERS.split()}
        self.filters |= template_filters.FILTERS
        self.globals |= template_filters.FUNCTIONS
        del self.globals["lipsum"]

    def compile_metered(self, source: str) -> jinja2.Template:
        """The template of ``source``, its loops counted against the budget.

        Raises ``TemplateError`` when it is not valid Jinja or uses what is not offered.
        """
        try:
            tree = self.parse(source)
            for loop in tree.find_all(nodes.For):
                counted = nodes.Filter(loop.iter, "metered", [], [], None, None, lineno=loop.lineno)
                loop.iter = counted.set_environment(self)
            return jinja2.Template.from_code(self, self.compile(tree), self.make_globals(None))
        except jinja2.TemplateError as error:
            raise TemplateError(
                TemplateProblem.BROKEN, f"The model's chat template cannot be used: {error}"
            ) from error

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        spend_step()
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str) and function.__name__ == "replace":
            return template_filters.replace(owner, *args, **kwargs)
        if isinstance(owner, str) and function.__name__ == "join":
            return template_filters.join(args[0], owner)
        return bounded(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, str | list | tuple) and isinstance(times, int):
                    check_size(len(sequence) * times)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            check_bits(left.bit_length() * right)
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("formatting with % is not available, use ~")
        return bounded(super().call_binop(context, operator, left, right))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in _UNBOUNDED_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        # A width in a format makes a string of any size.
        if super().wrap_str_format(value) is not None:
            raise SecurityError("str.format is not available, use ~")


class _TracingCodeGenerator(CodeGenerator):
    """Emits the template's string constants as literal text."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802 (Jinja's name)
        if isinstance(node.value, str):
            self.write(f"environment.literal({node.value!r})")
        else:
            super().visit_Const(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 (Jinja's name)
        self.write("environment.concat((")
        for value in node.nodes:
            self.visit(value, frame)
            self.write(", ")
        self.write("))")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.literal({''.join(map(str, group))!r})"


class _GenerationBlock(Extension):
    """``{% generation %}`` marks, for training, what the model wrote; here its content is simply output."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
