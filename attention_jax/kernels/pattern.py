"""A mask as kernels take it: a band around the diagonal, lengths, and segments."""

from typing import NamedTuple

from attention_jax.masks import Mask
from attention_jax.masks.kinds import Causal, Padding, Segments, SlidingWindow
from attention_jax.masks.mask import parts
from attention_jax.types import Array


class Pattern(NamedTuple):
    """The intersection of what is not None.

    Attributes:
      causal: Whether a query sees no later keys.
      window: Width of the narrowest window, or None.
      lengths: Numbers of real keys, one array per padding mask.
      segments: All segment masks.
      others: Names of masks that are none of these.
    """

    causal: bool
    window: int | None
    lengths: tuple[Array, ...]
    segments: tuple[Segments, ...]
    others: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The kinds of masks that are in it."""
        present = {
            "causal": self.causal,
            "sliding_window": self.window is not None,
            "padding": bool(self.lengths),
            "segments": bool(self.segments),
        }
        return (*(name for name, there in present.items() if there), *self.others)

    @property
    def positional(self) -> bool:
        """Whether positions decide what is visible."""
        return self.causal or self.window is not None or bool(self.lengths)


def pattern(mask: Mask | None) -> Pattern:
    """Returns what `mask` consists of."""
    found = () if mask is None else parts(mask)
    # A subclass may show something else, so it counts as another kind.
    windows = [part.width for part in found if type(part) is SlidingWindow]
    known = (Causal, SlidingWindow, Padding, Segments)
    return Pattern(
        causal=any(type(part) is Causal for part in found),
        window=min(windows, default=None),
        lengths=tuple(part.lengths for part in found if type(part) is Padding),
        segments=tuple(part for part in found if type(part) is Segments),
        others=tuple(type(part).__name__ for part in found if type(part) not in known),
    )
