"""Batches: a pure function of seed and step, inside documents, every held-out byte once."""

import numpy as np
import pytest

from train import data

# Document d holds the bytes 50 d, 50 d + 1, ..., so a byte tells its document.
LENGTHS = {0: 37, 1: 11, 2: 50}
DOCUMENTS = {str(d): (50 * d + np.arange(length)).astype(np.uint8) for d, length in LENGTHS.items()}
CORPUS = data.join(DOCUMENTS)


def batch(seed=3, step=5, batch_size=13, context=7):
    return data.training_batch(CORPUS, seed=seed, step=step, batch_size=batch_size, context=context)


def test_seed_and_step_alone_decide():
    first, again = batch(), batch()
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
    assert (first["tokens"] != batch(step=6)["tokens"]).any()
    assert (first["tokens"] != batch(seed=4)["tokens"]).any()


def test_stacked_batches_are_the_single_ones():
    stacked = data.training_batches(CORPUS, seed=3, first=4, count=3, batch_size=13, context=7)
    assert stacked["tokens"].shape == (3, 13, 7)
    for name, array in batch(step=5).items():
        np.testing.assert_array_equal(stacked[name][1], array)


def test_kinds_and_shapes():
    found = batch()
    assert {name: (str(array.dtype), array.shape) for name, array in found.items()} == {
        "tokens": ("int32", (13, 7)),
        "targets": ("int32", (13, 7)),
        "weights": ("float32", (13, 7)),
    }


def test_windows_never_cross_a_document():
    # The control: the joined buffer does have neighbours from two documents.
    assert (np.diff(CORPUS.text.astype(int)) != 1).any()
    for step in range(200):
        found = batch(step=step)
        assert (found["weights"] == 1).all()
        np.testing.assert_array_equal(found["targets"], found["tokens"] + 1)
        np.testing.assert_array_equal(found["tokens"] // 50, found["targets"] // 50)


def test_every_window_is_equally_likely():
    starts = np.concatenate(
        [batch(step=step, batch_size=100)["tokens"][:, 0] for step in range(90)]
    )
    values, counts = np.unique(starts, return_counts=True)
    # A window predicts 7 bytes, so a document of n bytes has n - 7 of them.
    assert len(values) == sum(length - 7 for length in LENGTHS.values())
    assert counts.min() > 0.5 * counts.mean() and counts.max() < 1.5 * counts.mean()


def test_short_documents_are_padded_with_weight_zero():
    corpus = data.join({"short": np.array([7, 8, 9], np.uint8)})
    found = data.training_batch(corpus, seed=0, step=0, batch_size=2, context=5)
    np.testing.assert_array_equal(found["tokens"], [[7, 8, 9, 0, 0]] * 2)
    np.testing.assert_array_equal(found["targets"], [[8, 9, 0, 0, 0]] * 2)
    np.testing.assert_array_equal(found["weights"], [[1, 1, 0, 0, 0]] * 2)


def test_evaluation_predicts_every_byte_but_the_first_once():
    found = data.evaluation_batches(CORPUS, max_tokens=0, batch_size=4, context=7)
    assert found["tokens"].shape == (4, 4, 7)
    targets = np.sort(found["targets"][found["weights"] == 1])
    expected = np.concatenate([document[1:] for document in DOCUMENTS.values()])
    np.testing.assert_array_equal(targets, np.sort(expected))
    inside = found["weights"] == 1
    np.testing.assert_array_equal(found["targets"][inside], found["tokens"][inside] + 1)


def test_fewer_evaluation_windows_are_spread_over_all_documents():
    few = data.evaluation_batches(CORPUS, max_tokens=42, batch_size=6, context=7)
    assert few["tokens"].shape == (1, 6, 7)
    assert set(few["tokens"][0, :, 0] // 50) == {0, 1, 2}
    again = data.evaluation_batches(CORPUS, max_tokens=42, batch_size=6, context=7)
    np.testing.assert_array_equal(few["tokens"], again["tokens"])


def test_nothing_to_predict_is_refused():
    with pytest.raises(ValueError, match=r"documents: expected one of 2 bytes or more"):
        data.join({"tiny": np.array([1], np.uint8)})
