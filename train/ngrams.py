"""Witten-Bell interpolated byte n-grams: what any model of this text must beat.

`python -m train.ngrams` prints the table of REFERENCE, computed from the default corpus and split.
An earlier independent count, on a text stripped slightly differently, gave 3.312, 2.538, 2.088,
1.811, 1.690, 1.688 for orders 1 to 6 (INDEPENDENT). Comparisons use REFERENCE, the numbers that
the command reproduces; the report shows both.
"""

import collections.abc
import types

import numpy as np

from train import config as config_lib
from train import documents as documents_lib

# Held-out nats per byte by order, on the default corpus with the default plays held out.
REFERENCE = types.MappingProxyType({1: 3.318, 2: 2.535, 3: 2.077, 4: 1.805, 5: 1.693, 6: 1.694})
INDEPENDENT = types.MappingProxyType({1: 3.312, 2: 2.538, 3: 2.088, 4: 1.811, 5: 1.690, 6: 1.688})
COMMAND = "python -m train.ngrams"
# The rows of the report's table by their source.
SOURCES = types.MappingProxyType(
    {
        "this table's command": REFERENCE,
        "independent count (text stripped slightly differently)": INDEPENDENT,
    }
)
ALPHABET = 256


def _packed(text: np.ndarray, order: int) -> np.ndarray:
    """Every n-gram of a text as one integer, the newest byte lowest."""
    packed = np.zeros(len(text) - order + 1, np.uint64)
    for offset in range(order):
        part = text[offset : len(text) - order + 1 + offset].astype(np.uint64)
        packed = (packed << np.uint64(8)) | part
    return packed


def _lookup(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Values at wanted keys (sorted keys), 0 where absent."""
    index = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[index] == wanted, values[index], 0)


def losses(
    train: collections.abc.Iterable[np.ndarray],
    held_out: collections.abc.Iterable[np.ndarray],
    max_order: int = 6,
) -> dict[int, float]:
    """Nats per byte of the held-out documents by order 1 to max_order.

    p_n(c | h) = (count(h c) + distinct(h) p_(n-1)(c | h')) / (count(h) + distinct(h)), where
    distinct(h) counts the different bytes seen after h, and p_0 = 1 / 256.

    Args:
      train: documents to count, uint8 arrays.
      held_out: documents to predict, uint8 arrays.
      max_order: the longest n-gram, at most 8 (an n-gram is one 64-bit integer).

    Returns:
      Mean negative log probability by order; a document's first bytes use what context they have.
    """
    if not 1 <= max_order <= 8:
        raise ValueError(f"max_order: expected 1 to 8, got {max_order}; choose one of these")
    train, held_out = list(train), list(held_out)
    probability = [np.full(len(text), 1 / ALPHABET) for text in held_out]
    result = {}
    for order in range(1, max_order + 1):
        packed = np.concatenate([_packed(text, order) for text in train if len(text) >= order])
        grams, counts = np.unique(packed, return_counts=True)
        contexts, first = np.unique(grams >> np.uint64(8), return_index=True)
        context_counts = np.add.reduceat(counts, first)
        distinct = np.diff(np.append(first, len(grams)))
        for text, lower in zip(held_out, probability, strict=True):
            wanted = _packed(text, order) if len(text) >= order else np.zeros(0, np.uint64)
            context = wanted >> np.uint64(8)
            seen = _lookup(contexts, context_counts, context)
            kinds = _lookup(contexts, distinct, context)
            tail = lower[order - 1 :]
            mixed = (_lookup(grams, counts, wanted) + kinds * tail) / np.maximum(seen + kinds, 1)
            lower[order - 1 :] = np.where(seen > 0, mixed, tail)
        result[order] = float(-np.mean(np.log(np.concatenate(probability))))
    return result


def main() -> None:
    """Prints the table."""
    split = documents_lib.load(config_lib.DataConfig())
    for name, texts in (("train", split.train), ("held out", split.held_out)):
        total = sum(len(text) for text in texts.values())
        print(f"{name}: {len(texts)} documents, {total:,} bytes")
    for order, nats in losses(split.train.values(), split.held_out.values()).items():
        print(f"{order}-gram  {nats:.4f} nats/byte  (reference {REFERENCE[order]:.3f})")


if __name__ == "__main__":
    main()
