"""The fitted layer, against Newton's method written down naively."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from diwa.errors import DataError, ModelError
from diwa.evaluate import lastlayer
from diwa.evaluate.lastlayer import FOLDS, STRENGTHS, UNCHOSEN, Head, fit_head


def blobs(
    count: int, width: int, classes: int, *, seed: int = 0, apart: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Overlapping clouds of points, of unequal sizes, with features of unequal scales."""
    chance = np.random.RandomState(seed)
    labels = np.sort(chance.randint(0, classes, size=count) * chance.randint(0, 2, size=count))
    labels[:classes] = np.arange(classes)
    centres = chance.normal(size=(classes, width)) * apart
    points = centres[labels] + chance.normal(size=(count, width))
    scales = 10.0 ** chance.uniform(-1, 1, size=width)
    return torch.tensor(points * scales + 3).float(), torch.tensor(labels)


def newton(features: np.ndarray, labels: np.ndarray, classes: int, strength: float) -> np.ndarray:
    """The logits of the optimum: full Hessian, one image and one pair of classes at a time."""
    count, width = features.shape
    spread = features.std(axis=0)
    points = np.hstack([(features - features.mean(axis=0)) / spread, np.ones((count, 1))])
    size = classes * (width + 1)
    found = np.zeros((classes, width + 1))
    penalised = np.ones((classes, width + 1))
    penalised[:, -1] = 0
    for _ in range(60):
        gradient, hessian = np.zeros((classes, width + 1)), np.zeros((size, size))
        for point, label in zip(points, labels, strict=True):
            logits = found @ point
            likely = np.exp(logits - logits.max())
            likely /= likely.sum()
            gradient += np.outer(likely - np.eye(classes)[label], point) / count
            curved = np.diag(likely) - np.outer(likely, likely)
            hessian += np.kron(curved, np.outer(point, point)) / count
        gradient += strength * penalised * found
        hessian += np.diag(strength * penalised.ravel())
        # The biases' sum is free; the shortest step leaves it where it is.
        step = np.linalg.lstsq(hessian, gradient.ravel(), rcond=1e-12)[0]
        found -= step.reshape(found.shape)
        if np.abs(step).max() < 1e-12:
            break
    logits = points @ found.T
    return logits - logits.mean(axis=1, keepdims=True)


@pytest.mark.parametrize("strength", [1.0, 0.1, 0.01])
@pytest.mark.parametrize(("count", "width", "classes"), [(40, 5, 3), (12, 20, 3), (30, 4, 2)])
def test_it_is_newtons_optimum(count: int, width: int, classes: int, strength: float) -> None:
    features, labels = blobs(count, width, classes)
    head = fit_head(features, labels, classes, strength=strength)
    expected = newton(features.double().numpy(), labels.numpy(), classes, strength)
    assert np.abs(expected).max() > 0.1, "a test that tells nothing"
    np.testing.assert_allclose(head.logits(features).numpy(), expected, atol=2e-3, rtol=1e-3)
    assert head.strength == strength


def test_folding_changes_no_logit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standardising first and then applying the layer of standardised features is the same."""
    kept = []
    plain = lastlayer._Problem.in_features

    def spied(problem: lastlayer._Problem, found: torch.Tensor) -> object:
        kept.append(plain(problem, found))
        return kept[-1]

    monkeypatch.setattr(lastlayer._Problem, "in_features", spied)
    features, labels = blobs(50, 8, 4)
    head = fit_head(features, labels, 4, strength=0.1)
    ((weight, bias),) = kept
    wide = features.double()
    spread = wide.std(dim=0, unbiased=False)
    logits = (wide - wide.mean(dim=0)) / spread @ weight.T + bias
    centred = logits - logits.mean(dim=1, keepdim=True)
    torch.testing.assert_close(head.logits(features).double(), centred, atol=1e-4, rtol=1e-4)


def test_the_same_images_give_the_same_bytes_with_any_number_of_threads() -> None:
    features, labels = blobs(90, 30, 3)
    before = torch.get_num_threads()
    heads = []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            heads.append(fit_head(features, labels, 3))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for head in heads[1:]:
        assert head.weight.numpy().tobytes() == heads[0].weight.numpy().tobytes()
        assert head.bias.numpy().tobytes() == heads[0].bias.numpy().tobytes()


def _held_out_right(features: torch.Tensor, labels: torch.Tensor, strength: float) -> int:
    """How many are right when a layer is fitted to the other folds, from nothing each time."""
    dealt = torch.from_numpy(lastlayer._dealt(labels.numpy()))
    right = 0
    for fold in range(FOLDS):
        # The whole set's standardisation, as the search has it; it knows no label.
        spread = features.std(dim=0, unbiased=False)
        points = (features - features.mean(dim=0)) / spread
        problem = lastlayer._Problem(points.double(), labels, int(labels.max()) + 1)
        found = problem.solved(strength, rows=(dealt != fold).nonzero()[:, 0], tolerance=1e-5)
        right += problem.tested(found, (dealt == fold).nonzero()[:, 0])[0]
    return right


def test_the_strength_is_the_best_on_held_out_images() -> None:
    features, labels = blobs(120, 40, 3, apart=0.25)
    chosen = fit_head(features, labels, 3).strength
    right = {s: _held_out_right(features, labels, s) for s in STRENGTHS}
    assert len(set(right.values())) > 1, "a test that tells nothing"
    tried = [s for s in STRENGTHS if s >= chosen / 10]
    # The search is rough and stops early: it may miss by an image.
    assert right[chosen] >= max(right[s] for s in tried) - 1
    assert min(right.values()) < right[chosen] - 1


def test_of_many_images_few_fits_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the last one begins where those ended: it takes few steps to the same optimum."""
    fits: list[tuple[int, bool]] = []
    solved = lastlayer._Problem.solved

    def counted(problem: lastlayer._Problem, strength: float, **how: Any) -> torch.Tensor:
        fits.append((len(how.get("rows", problem.labels)), how.get("start") is not None))
        return solved(problem, strength, **how)

    monkeypatch.setattr(lastlayer._Problem, "solved", counted)
    features, labels = blobs(3000, 6, 3, apart=0.5)
    head = fit_head(features, labels, 3)
    assert {rows for rows, _ in fits[:-1]} == {2400}
    assert [started for _, started in fits[:2]] == [False, False]
    assert all(started for _, started in fits[2:])
    assert fits[-1] == (3000, True)
    assert len(fits) % 2 == 1, "two folds hold 1,000 images"
    again = fit_head(features, labels, 3, strength=head.strength)
    torch.testing.assert_close(head.weight, again.weight, atol=1e-4, rtol=1e-3)


def test_noise_is_met_with_a_stronger_penalty_than_signal() -> None:
    clear, labels = blobs(100, 30, 3, apart=1.5)
    noise = torch.from_numpy(np.random.RandomState(1).normal(size=(100, 30))).float()
    noise[:, 0] = labels + 0.5 * noise[:, 0]
    assert fit_head(noise, labels, 3).strength > fit_head(clear, labels, 3).strength


def test_folds_share_out_each_class() -> None:
    labels = np.array([0] * 11 + [1] * 7 + [2])
    dealt = lastlayer._dealt(labels)
    assert dealt[labels == 2].tolist() == [-1], "the only one of a class is always trained on"
    for label, size in ((0, 11), (1, 7)):
        counts = np.bincount(dealt[labels == label], minlength=FOLDS)
        assert counts.sum() == size
        assert counts.max() - counts.min() <= 1
    sizes = np.bincount(dealt[dealt >= 0], minlength=FOLDS)
    assert sizes.max() - sizes.min() <= 1


def test_a_class_without_images_is_never_predicted() -> None:
    features, labels = blobs(40, 6, 3)
    labels = torch.tensor([0, 2, 5])[labels]
    head = fit_head(features, labels, 7)
    assert head.weight.shape == (7, 6)
    far = torch.from_numpy(np.random.RandomState(2).normal(size=(500, 6)) * 300).float()
    for seen in (features, far):
        logits = head.logits(seen)
        assert bool(torch.isfinite(logits).all())
        assert set(logits.argmax(dim=1).tolist()) <= {0, 2, 5}
    assert (head.logits(features).argmax(dim=1) == labels).float().mean() > 0.8


def test_one_image_per_class() -> None:
    features, labels = torch.eye(4, 9) * 5, torch.tensor([3, 1, 0, 2])
    head = fit_head(features, labels, 4)
    assert head.strength == UNCHOSEN
    assert head.logits(features).argmax(dim=1).tolist() == [3, 1, 0, 2]


def test_two_images_of_a_class_and_one_of_another() -> None:
    head = fit_head(torch.tensor([[0.0, 1], [0.1, 1], [4, 1]]), torch.tensor([0, 0, 1]), 2)
    assert head.logits(torch.tensor([[0.0, 1], [4, 1]])).argmax(dim=1).tolist() == [0, 1]


def test_one_image_and_features_that_never_change() -> None:
    head = fit_head(torch.ones(1, 3), torch.tensor([1]), 3)
    assert head.logits(torch.zeros(2, 3)).argmax(dim=1).tolist() == [1, 1]
    flat = fit_head(torch.ones(6, 3), torch.tensor([0, 0, 0, 0, 1, 1]), 2)
    assert bool(torch.isfinite(flat.weight).all())
    # Nothing tells them apart, so what is left is how frequent they are.
    likely = flat.logits(torch.ones(1, 3)).softmax(dim=1)
    assert likely[0].tolist() == pytest.approx([4 / 6, 2 / 6], abs=1e-4)


def test_a_feature_that_hardly_varies_is_not_blown_up() -> None:
    features, labels = blobs(60, 5, 3)
    quiet = torch.cat([features, 1 + 1e-7 * torch.rand(60, 1, generator=_seeded())], dim=1)
    head = fit_head(quiet, labels, 3, strength=0.1)
    moved = quiet.clone()
    moved[:, -1] += 0.01
    change = (head.logits(moved) - head.logits(quiet)).abs().max()
    assert change < 0.1


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_refusals() -> None:
    with pytest.raises(DataError, match="no images to train the last layer on; give at least one"):
        fit_head(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 2)
    with pytest.raises(ModelError, match="a feature is not a finite number"):
        fit_head(torch.tensor([[1.0], [float("nan")]]), torch.tensor([0, 1]), 2)


def test_a_head_takes_any_float() -> None:
    head = Head(torch.eye(2), torch.zeros(2), 1.0)
    assert head.logits(torch.ones(1, 2, dtype=torch.bfloat16)).tolist() == [[1.0, 1.0]]
