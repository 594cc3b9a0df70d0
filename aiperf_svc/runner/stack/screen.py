"""Where the run of a stack shows itself: the whole terminal, or a part of it."""

from typing import Protocol

from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.runner.display import Display, make_display
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.stack import summary, terminal
from aiperf_svc.runner.stack.stages import Stage


class Screen(Protocol):
    """Shows one stack's run to the user."""

    def say(self, text: str) -> None:
        """Print a text for people."""
        ...

    def begin(self, stage: Stage) -> None:
        """Take in that a stage has begun."""
        ...

    def preview(self, text: str) -> None:
        """Take in what the stack will create."""
        ...

    def display(self, plan: StackPlan) -> Display:
        """Return the display of the run, until it is closed."""
        ...


class WholeScreen:
    """The terminal, for a stack that has it for itself."""

    def __init__(self, options: RunOptions) -> None:
        self._options = options

    def say(self, text: str) -> None:
        """Print a text for people on standard error."""
        terminal.say(text)

    def begin(self, stage: Stage) -> None:
        """Show nothing: each stage says what it does."""

    def preview(self, text: str) -> None:
        """Print it."""
        terminal.say(text)

    def display(self, plan: StackPlan) -> Display:
        """Return the display that the user asked for."""
        return make_display(self._options, summary.title(plan), plan.topology)
