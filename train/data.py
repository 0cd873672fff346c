"""Batches of byte windows: pure functions of (seed, step), so resuming needs no iterator state."""

import collections.abc
import typing

import numpy as np

Batch = dict[str, np.ndarray]


class Corpus(typing.NamedTuple):
    """Documents joined in one buffer, with the range of each."""

    text: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray


def join(documents: collections.abc.Mapping[str, np.ndarray]) -> Corpus:
    """Joins documents of at least two bytes (one to read, one to predict)."""
    arrays = [array for array in documents.values() if len(array) > 1]
    if not arrays:
        raise ValueError("documents: expected one of 2 bytes or more, got none; add text")
    lengths = np.array([len(array) for array in arrays])
    return Corpus(np.concatenate(arrays), np.cumsum(lengths) - lengths, lengths)


def _windows(corpus: Corpus, document: np.ndarray, start: np.ndarray, context: int) -> Batch:
    """Windows [B, T] at positions inside documents; weight 0 past a document's end."""
    index = start[:, None] + np.arange(context + 1)[None, :]
    inside = index < corpus.lengths[document][:, None]
    flat = corpus.offsets[document][:, None] + np.minimum(
        index, corpus.lengths[document][:, None] - 1
    )
    window = np.where(inside, corpus.text[flat], 0).astype(np.int32)
    weights = inside[:, 1:].astype(np.float32)
    return {"tokens": window[:, :-1], "targets": window[:, 1:], "weights": weights}


def training_batch(corpus: Corpus, *, seed: int, step: int, batch_size: int, context: int) -> Batch:
    """The batch of one step: windows drawn uniformly from all that lie inside one document.

    Args:
      corpus: the joined training documents.
      seed: the run's seed.
      step: the step, 0 for the first.
      batch_size: windows B.
      context: predicted bytes T of a window.

    Returns:
      tokens and targets, int32 [B, T], and weights, float32 [B, T]. The same arguments give the
      same batch on every machine, whatever came before.
    """
    starts = np.maximum(corpus.lengths - context, 1)
    ends = np.cumsum(starts)
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, step], np.uint64)))
    draw = generator.integers(ends[-1], size=batch_size)
    document = np.searchsorted(ends, draw, side="right")
    return _windows(corpus, document, draw - (ends - starts)[document], context)


def training_batches(
    corpus: Corpus, *, seed: int, first: int, count: int, batch_size: int, context: int
) -> Batch:
    """The batches of `count` consecutive steps, stacked on a new leading axis."""
    batches = [
        training_batch(corpus, seed=seed, step=step, batch_size=batch_size, context=context)
        for step in range(first, first + count)
    ]
    return {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}


def evaluation_batches(corpus: Corpus, *, max_tokens: int, batch_size: int, context: int) -> Batch:
    """Fixed windows side by side over the documents, each byte but the first predicted once.

    Args:
      corpus: the joined held-out documents.
      max_tokens: about how many bytes to predict, evenly spread over all windows; 0 for all.
      batch_size: windows B of a batch.
      context: predicted bytes T of a window.

    Returns:
      Arrays [N, B, T] as `training_batch`'s; the last batch is filled up with weight 0.
    """
    counts = -(-(corpus.lengths - 1) // context)
    document = np.repeat(np.arange(len(counts)), counts)
    start = np.concatenate([np.arange(count) * context for count in counts])
    wanted = min(len(start), -(-max_tokens // context)) if max_tokens else len(start)
    chosen = (np.arange(wanted) * len(start)) // wanted
    batch = _windows(corpus, document[chosen], start[chosen], context)
    missing = -wanted % batch_size
    return {
        name: np.pad(array, [(0, missing), (0, 0)]).reshape(-1, batch_size, context)
        for name, array in batch.items()
    }
