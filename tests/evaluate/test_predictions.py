"""What is read off predictions, against loops over images and classes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diwa.errors import DiwaError
from diwa.evaluate.predictions import Predictions, ensemble, pooled_accuracy


def drawn(images: int, classes: int, seed: int = 0, width: int | None = None) -> Predictions:
    """Logits in quarters, so that ties happen."""
    chance = np.random.RandomState(seed)
    return Predictions(
        torch.from_numpy(chance.randint(-8, 9, (images, classes)) / 4).float(),
        torch.from_numpy(chance.randint(0, classes, images)),
        None if width is None else torch.from_numpy(chance.rand(images, width)).float(),
    )


def naive_correct(logits: Sequence[Sequence[float]], labels: Sequence[int]) -> int:
    correct = 0
    for row, label in zip(logits, labels, strict=True):
        best = 0
        for number, value in enumerate(row):
            # The first of equal ones wins.
            if value > row[best]:
                best = number
        correct += best == label
    return correct


def naive_loss(logits: Sequence[Sequence[float]], labels: Sequence[int]) -> float:
    losses = []
    for row, label in zip(logits, labels, strict=True):
        top = max(row)
        losses.append(top + math.log(sum(math.exp(value - top) for value in row)) - row[label])
    return math.fsum(losses) / len(losses)


sizes = st.tuples(st.integers(1, 30), st.integers(2, 6), st.integers(0, 1000))


class TestOneModels:
    @settings(max_examples=80, deadline=None)
    @given(sizes)
    def test_accuracy_and_loss(self, size: tuple[int, int, int]) -> None:
        says = drawn(*size)
        logits, labels = says.logits.tolist(), says.labels.tolist()
        correct = naive_correct(logits, labels)
        assert says.correct() == correct
        assert says.accuracy() == correct / len(labels)
        assert says.cross_entropy() == pytest.approx(naive_loss(logits, labels), abs=1e-12)
        assert len(says) == len(labels)

    def test_large_logits_do_not_overflow(self) -> None:
        says = Predictions(torch.tensor([[1e4, 0.0], [0.0, 3e4]]), torch.tensor([1, 1]))
        assert says.cross_entropy() == pytest.approx(5e3)

    def test_the_loss_is_summed_in_float64(self) -> None:
        """In float32 the loss of a confident model is nought."""
        says = Predictions(torch.tensor([[25.0, 0.0]]), torch.tensor([0]))
        assert says.cross_entropy() == pytest.approx(math.log1p(math.exp(-25)), rel=1e-6)

    def test_no_images(self) -> None:
        with pytest.raises(DiwaError, match="no images to score; choose a domain that has some"):
            Predictions(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).accuracy()

    @pytest.mark.parametrize("width", [None, 5])
    @pytest.mark.parametrize("positions", [[], [0], [4, 1, 1, 9], list(range(10))])
    def test_at_some_positions(self, width: int | None, positions: list[int]) -> None:
        says = drawn(10, 3, width=width)
        some = says.at(np.array(positions, dtype=np.int64))
        assert some.logits.tolist() == [says.logits[p].tolist() for p in positions]
        assert some.labels.tolist() == [says.labels[p].item() for p in positions]
        if width is None:
            assert some.features is None
        else:
            assert says.features is not None
            assert some.features is not None
            assert some.features.tolist() == [says.features[p].tolist() for p in positions]


class TestEnsemble:
    @settings(max_examples=60, deadline=None)
    @given(sizes, st.integers(1, 6))
    def test_is_the_mean_of_the_logits(self, size: tuple[int, int, int], models: int) -> None:
        images, classes, seed = size
        labels = drawn(images, classes, seed).labels
        says = [Predictions(drawn(images, classes, seed + k).logits, labels) for k in range(models)]
        together = ensemble(says)
        naive = [
            [math.fsum(one.logits[i, c].item() for one in says) / models for c in range(classes)]
            for i in range(images)
        ]
        # Quarters are summed exactly: only the rounding to float32 at the end is left.
        assert together.logits.tolist() == torch.tensor(naive, dtype=torch.float32).tolist()
        assert together.logits.dtype == torch.float32
        assert torch.equal(together.labels, labels)
        rounded = torch.tensor(naive, dtype=torch.float32).tolist()
        assert together.correct() == naive_correct(rounded, labels.tolist())

    def test_is_not_a_vote(self) -> None:
        """Two are slightly wrong and one is surely right."""
        labels = torch.tensor([0])
        rows = [[0.0, 0.1], [0.0, 0.1], [5.0, 0.0]]
        assert ensemble([Predictions(torch.tensor([row]), labels) for row in rows]).accuracy() == 1

    def test_is_not_the_mean_of_probabilities(self) -> None:
        labels = torch.tensor([1])
        rows = [[10.0, 0.0, 0.0], [0.0, 4.0, 0.0], [-30.0, 4.0, 0.0]]
        together = ensemble([Predictions(torch.tensor([row]), labels) for row in rows])
        assert together.accuracy() == 1

    def test_of_one_is_that_one(self) -> None:
        one = drawn(7, 3)
        assert torch.equal(ensemble([one]).logits, one.logits)

    def test_leaves_its_members_alone(self) -> None:
        says = [drawn(5, 3), drawn(5, 3)]
        before = [one.logits.clone() for one in says]
        ensemble(says)
        assert all(torch.equal(a.logits, b) for a, b in zip(says, before, strict=True))

    def test_does_not_depend_on_the_order(self) -> None:
        says = [Predictions(torch.randn(9, 4), torch.zeros(9, dtype=torch.int64)) for _ in range(5)]
        assert torch.allclose(
            ensemble(says).logits, ensemble(says[::-1]).logits, rtol=2**-23, atol=0
        )

    def test_nobody(self) -> None:
        with pytest.raises(DiwaError, match="no predictions to average"):
            ensemble([])

    @pytest.mark.parametrize(
        "other",
        [
            Predictions(torch.zeros(3, 2), torch.tensor([0, 1, 1])),  # other labels
            Predictions(torch.zeros(2, 2), torch.tensor([0, 1])),  # fewer images
            Predictions(torch.zeros(3, 3), torch.tensor([0, 1, 0])),  # more classes
            Predictions(torch.zeros(3, 1), torch.tensor([0, 1, 0])),  # would broadcast
        ],
    )
    @pytest.mark.parametrize("turned", [False, True])
    def test_predictions_that_do_not_belong_together(
        self, other: Predictions, turned: bool
    ) -> None:
        one = Predictions(torch.zeros(3, 2), torch.tensor([0, 1, 0]))
        says = [one, one, other]
        with pytest.raises(DiwaError, match="different images or classes can't be averaged"):
            ensemble(says[::-1] if turned else says)


class TestPooled:
    @settings(max_examples=60, deadline=None)
    @given(st.lists(sizes, min_size=1, max_size=4))
    def test_each_image_counts_once(self, several: list[tuple[int, int, int]]) -> None:
        says = [drawn(*size) for size in several]
        right = sum(naive_correct(one.logits.tolist(), one.labels.tolist()) for one in says)
        assert pooled_accuracy(says) == right / sum(images for images, _, _ in several)

    def test_is_not_the_mean_of_the_domains(self) -> None:
        large = Predictions(torch.tensor([[1.0, 0.0]] * 9), torch.tensor([0] * 9))
        small = Predictions(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
        assert pooled_accuracy([large, small]) == 0.9

    @pytest.mark.parametrize("count", [0, 2])
    def test_no_images(self, count: int) -> None:
        none = Predictions(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
        with pytest.raises(DiwaError, match="no images to score; choose domains that have some"):
            pooled_accuracy([none] * count)

    def test_a_domain_without_images_counts_for_nothing(self) -> None:
        none = Predictions(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
        one = drawn(10, 2)
        assert pooled_accuracy([none, one]) == one.accuracy()
