"""The comparison behind all assertions: what broke, where, by how much."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import checks

_TOLERANCES = {"float64": 1e-10, "float32": 2e-5, "bfloat16": 2.0**-6, "float16": 2.0**-9}


def default_tolerance(tree: Any) -> float:
    """Returns the tolerance for the narrowest dtype among the leaves of `tree`."""
    names = {jnp.asarray(leaf).dtype.name for leaf in jax.tree.leaves(tree)}
    return max((_TOLERANCES[name] for name in names if name in _TOLERANCES), default=0.0)


def worst(expected: Any, got: Any) -> tuple[float, float, str]:
    """Returns the largest difference, the size it is relative to, and the place it is at.

    A number that is NaN on either side, or infinite on one, counts as an infinite difference.
    """
    chex.assert_trees_all_equal_shapes(expected, got)
    largest, relative_to, place = -1.0, 1.0, "nowhere"
    pairs = zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(got), strict=True)
    for (path, one), other in pairs:
        wide = np.complex128 if np.iscomplexobj(one) or np.iscomplexobj(other) else np.float64
        one, other = np.asarray(one, wide), np.asarray(other, wide)
        with np.errstate(invalid="ignore"):
            difference = np.where(one == other, 0.0, np.abs(one - other))
        difference = np.where(np.isnan(difference), np.inf, difference)
        if not difference.size:
            continue
        index = np.unravel_index(np.argmax(difference), difference.shape)
        size = max(1.0, float(np.max(np.abs(one), where=np.isfinite(one), initial=0.0)))
        if difference[index] / size > largest / relative_to:
            name = jax.tree_util.keystr(path) or "output"
            largest, relative_to = float(difference[index]), size
            place = f"{name}{list(map(int, index))}: {one[index]:.9g} against {other[index]:.9g}"
    return largest, relative_to, place


def assert_close(what: str, expected: Any, got: Any, tolerance: float | None) -> None:
    """Raises AssertionError, with place and size of the worst difference, unless the trees agree.

    The tolerance is relative to the largest number of a leaf, or to 1 where that is less.
    """
    tolerance = default_tolerance((expected, got)) if tolerance is None else tolerance
    if not 0.0 <= tolerance < float("inf"):
        raise checks.refuse(
            ValueError,
            "tolerance",
            "a finite number from 0 on",
            tolerance,
            "None takes the default",
        )
    try:
        largest, relative_to, place = worst(expected, got)
    except AssertionError as error:
        raise AssertionError(f"{what}: structures or shapes differ. {error}") from error
    if not largest <= tolerance * relative_to:
        raise AssertionError(
            f"{what}. Largest difference {largest:.3g} (allowed {tolerance * relative_to:.3g}) "
            f"at {place}"
        )


def refuse_vacuous(argument: str, expected: str, got: object) -> Exception:
    """Returns the error for inputs on which an assertion could not fail."""
    remedy = "choose inputs on which the property can be broken"
    return checks.refuse(ValueError, argument, expected, got, remedy)


def check_differ(
    argument: str, what: str, one: Any, other: Any, tolerance: float | None = None
) -> None:
    """Raises ValueError if the two trees agree, because then the assertion could not fail."""
    tolerance = default_tolerance((one, other)) if tolerance is None else tolerance
    largest, relative_to, _ = worst(one, other)
    if largest <= tolerance * relative_to:
        raise refuse_vacuous(argument, f"inputs for which {what}", "equal outputs")
