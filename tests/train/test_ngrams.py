"""The n-gram baselines against a plain loop, and the table against the corpus."""

import collections
import math

import numpy as np
import pytest

from train import config as config_lib
from train import documents, ngrams


def plain_loss(train, held_out, order):
    """Witten-Bell by dictionaries."""
    counts = [collections.defaultdict(collections.Counter) for _ in range(order)]
    for text in train:
        for n in range(order):
            for i in range(n, len(text)):
                counts[n][text[i - n : i]][text[i]] += 1
    total = []
    for text in held_out:
        for i in range(len(text)):
            probability = 1 / 256
            for n in range(min(order, i + 1)):
                seen = counts[n][text[i - n : i]]
                if seen:
                    size, kinds = sum(seen.values()), len(seen)
                    probability = (seen[text[i]] + kinds * probability) / (size + kinds)
            total.append(-math.log(probability))
    return sum(total) / len(total)


def test_against_a_plain_loop():
    train = [b"to be or not to be", b"that is the question", b"ab"]
    held_out = [b"to question or to be quite odd", b"b"]
    arrays = [[np.frombuffer(text, np.uint8) for text in texts] for texts in (train, held_out)]
    found = ngrams.losses(*arrays, max_order=4)
    for order in range(1, 5):
        assert found[order] == pytest.approx(plain_loss(train, held_out, order), abs=1e-12)


def test_the_table_is_reproduced():
    split = documents.load(config_lib.DataConfig())
    found = ngrams.losses(split.train.values(), split.held_out.values(), max_order=6)
    assert found == pytest.approx(dict(ngrams.REFERENCE), abs=6e-4)


def test_orders_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"max_order: expected 1 to 8, got 9"):
        ngrams.losses([], [], max_order=9)
