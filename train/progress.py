"""What a reader sees of a run: a live bar on a terminal, sparse lines elsewhere."""

import collections.abc
import typing

import rich.console
import rich.progress

Say = collections.abc.Callable[[str], None]
LINES = 4


class Bar:
    """Progress of one run; a context manager.

    Args:
      title: what runs.
      steps: how many steps it takes.
      tokens: tokens of one step.
      say: where plain lines go when there is no terminal.
    """

    def __init__(self, title: str, steps: int, tokens: int, say: Say):
        self._title, self._steps, self._tokens, self._say = title, steps, tokens, say
        self._said = 0
        self._live = rich.console.Console().is_terminal
        self._progress = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("{task.fields[note]}"),
            disable=not self._live,
        )
        self._task = self._progress.add_task(title, total=steps, note="")

    def __enter__(self) -> typing.Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def update(self, step: int, loss: float | None = None, seconds: float = 0.0) -> None:
        """Shows a step with its loss and the training time that led to it."""
        note = ""
        if loss is not None:
            rate = step * self._tokens / seconds
            left = (self._steps - step) * self._tokens / rate
            note = f"loss {loss:.3f}  {rate:,.0f} tokens/s  {left:.0f} s left"
        self._progress.update(self._task, completed=step, note=note)
        due = step * LINES // self._steps
        if not self._live and note and due > self._said:
            self._said = due
            self._say(f"{self._title}: step {step} of {self._steps}  {note}")
