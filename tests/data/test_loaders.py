"""Batches: pure functions of seed and step, the same bytes from here and from workers."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

import diwa
from diwa.data import loaders
from diwa.data.loaders import (
    Source,
    TrainBatches,
    View,
    Views,
    as_batch,
    eval_batches,
    train_loader,
)
from diwa.data.transforms import Augment, ImageSpec, squash
from diwa.seeding import seed_hash

SPEC = ImageSpec(size=(16, 24))
SIZES = [(30, 30), (20, 26), (16, 24)]


class Held:
    """Images in memory; some are stored smaller than they were."""

    def __init__(self, count: int, first: int) -> None:
        chance = np.random.RandomState(first)
        self._images = [
            chance.randint(0, 256, size=(*SIZES[at % 3], 3)).astype(np.uint8) for at in range(count)
        ]

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, position: int) -> np.ndarray:
        return self._images[position]

    def original_size(self, position: int) -> tuple[int, int]:
        height, width = self._images[position].shape[:2]
        return (height * 2, width * 2) if position % 2 else (height, width)


def source(count: int, first: int, positions: list[int] | None = None) -> Source:
    """Images whose labels are all different, counted from `first`."""
    kept = np.arange(count) if positions is None else np.array(positions, dtype=np.int64)
    return Source(Held(count, first), np.arange(first, first + count), kept)


@pytest.fixture
def sources() -> list[Source]:
    return [source(9, 0), source(6, 100, [5, 3, 2]), source(4, 200, [1])]


def same(one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


class TestTrainBatches:
    def test_what_is_drawn_has_a_formula(self, sources: list[Source]) -> None:
        batches = TrainBatches(sources, 5, SPEC, seed=7)
        for domain, held in enumerate(sources):
            for step in (0, 1, 5000):
                state = np.random.RandomState(seed_hash(7, "batch", domain, step))
                numbers = state.randint(len(held.positions), size=5)
                assert batches.drawn(domain, step).tolist() == [
                    held.positions[number] for number in numbers
                ]

    def test_a_batch_is_its_domains_one_after_the_other(self, sources: list[Source]) -> None:
        batches = TrainBatches(sources, 5, SPEC, seed=7)
        x, y = batches[12]
        assert batches.sizes == [5, 5, 5]
        assert (x.shape, x.dtype, y.dtype) == ((15, 3, 16, 24), torch.uint8, torch.int64)
        augment = Augment(SPEC)
        row = 0
        for domain, held in enumerate(sources):
            for position in batches.drawn(domain, 12):
                at = int(position)
                seed = seed_hash(7, "augment", 12, row)
                view = augment(held.images[at], held.images.original_size(at), seed)
                np.testing.assert_array_equal(x[row].permute(1, 2, 0).numpy(), view)
                assert y[row] == held.labels[at]
                row += 1
        assert row == 15

    def test_a_step_does_not_depend_on_those_before(self, sources: list[Source]) -> None:
        forward = TrainBatches(sources, 5, SPEC, seed=7)
        seen = [forward[step] for step in range(4)]
        backward = TrainBatches(sources, 5, SPEC, seed=7)
        torch.manual_seed(123)
        for step in reversed(range(4)):
            assert same(backward[step], seen[step])

    def test_every_step_seed_and_row_is_a_draw_of_its_own(self, sources: list[Source]) -> None:
        drawn = {
            TrainBatches(sources, 5, SPEC, seed=seed)[step][0].numpy().tobytes()
            for seed in range(3)
            for step in range(5)
        }
        assert len(drawn) == 15
        # The last source has but one image: its rows differ in augmentation only.
        rows = TrainBatches(sources, 5, SPEC, seed=7)[0][0][10:]
        assert len({row.numpy().tobytes() for row in rows}) == 5

    def test_it_draws_with_replacement_evenly_from_the_training_part(
        self, sources: list[Source]
    ) -> None:
        batches = TrainBatches(sources, 6, SPEC, seed=1)
        counts = Counter(int(p) for step in range(300) for p in batches.drawn(1, step))
        assert set(counts) == {2, 3, 5}
        assert all(500 < count < 700 for count in counts.values())  # 600 of 1800 each
        # Six of three: no batch could be without replacement; and some of nine repeat as well.
        assert any(len(set(batches.drawn(0, step).tolist())) < 6 for step in range(20))

    def test_the_callers_random_numbers_are_left_alone(self, sources: list[Source]) -> None:
        before = torch.random.get_rng_state()
        TrainBatches(sources, 2, SPEC, seed=7)[0]
        assert torch.equal(torch.random.get_rng_state(), before)


class TestTrainLoader:
    @pytest.mark.parametrize("steps", [range(5), range(3, 5), range(0)])
    def test_workers_give_the_same_bytes_in_order(
        self, sources: list[Source], steps: range
    ) -> None:
        batches = TrainBatches(sources, 3, SPEC, seed=7)
        here = list(train_loader(batches, steps, 0))
        there = list(train_loader(batches, steps, 2))
        assert len(here) == len(there) == len(steps)
        for step, one, other in zip(steps, here, there, strict=True):
            assert same(one, other)
            assert same(one, batches[step])

    def test_workers_read_the_cache(self, folder: Path) -> None:
        benchmark = diwa.open_folder(folder, size=(16, 24))
        held = [
            Source(domain.images, domain.labels, np.arange(len(domain))) for domain in benchmark
        ]
        batches = TrainBatches(held, 3, SPEC, seed=7)
        for one, other in zip(
            train_loader(batches, range(3), 0), train_loader(batches, range(3), 2), strict=True
        ):
            assert same(one, other)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_the_callers_random_numbers_are_left_alone(
        self, sources: list[Source], workers: int
    ) -> None:
        before = torch.random.get_rng_state()
        list(train_loader(TrainBatches(sources, 2, SPEC, seed=7), range(3), workers))
        assert torch.equal(torch.random.get_rng_state(), before)

    def test_without_workers_nothing_is_made_ahead(self, sources: list[Source]) -> None:
        class Counted(TrainBatches):
            made = 0

            def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
                self.made += 1
                return super().__getitem__(step)

        batches = Counted(sources, 2, SPEC, seed=7)
        list(islice(train_loader(batches, range(100), 0), 3))
        assert batches.made == 3


class TestViews:
    def test_each_row_is_the_view_that_was_asked_for(self, sources: list[Source]) -> None:
        chosen = [[View(0, 8, 1), View(1, 0, 2)], [View(2, 3, 1)], [View(0, 8, 1)]]
        views = Views(sources, chosen, SPEC)
        for number, batch in enumerate(chosen):
            x, y = views[number]
            assert len(x) == len(batch)
            for row, (domain, at, seed) in enumerate(batch):
                images = sources[domain].images
                expected = Augment(SPEC)(images[at], images.original_size(at), seed)
                np.testing.assert_array_equal(x[row].permute(1, 2, 0).numpy(), expected)
                assert y[row] == sources[domain].labels[at]
        assert torch.equal(views[0][0][0], views[2][0][0])

    def test_workers_give_the_same_bytes(self, sources: list[Source]) -> None:
        views = Views(sources, [[View(0, at, at)] for at in range(5)], SPEC)
        there = list(train_loader(views, range(5), 2))
        assert all(same(views[at], there[at]) for at in range(5))


class TestEvalBatches:
    @pytest.mark.parametrize("batch_size", [1, 3, 4, 9, 64])
    def test_everything_comes_once_in_order_and_clean(self, batch_size: int) -> None:
        held = source(9, 50, [8, 0, 3, 3, 1, 2, 5, 4, 7])
        batches = list(eval_batches(held, SPEC, batch_size))
        sizes = [len(labels) for _, labels in batches]
        assert sizes[:-1] == [batch_size] * (len(sizes) - 1)
        assert sum(sizes) == 9
        x = torch.cat([pixels for pixels, _ in batches])
        y = torch.cat([labels for _, labels in batches])
        assert y.tolist() == [50 + at for at in (8, 0, 3, 3, 1, 2, 5, 4, 7)]
        assert x.dtype == torch.uint8
        for row, at in enumerate(held.positions):
            expected = squash(held.images[at], SPEC.size)
            np.testing.assert_array_equal(x[row].permute(1, 2, 0).numpy(), expected)

    def test_no_images_are_no_batches(self) -> None:
        assert list(eval_batches(source(3, 0, []), SPEC)) == []

    def test_at_most_one_batch_is_made_ahead(self) -> None:
        class Watched(Held):
            seen = 0

            def __getitem__(self, position: int) -> np.ndarray:
                self.seen = max(self.seen, position + 1)
                return super().__getitem__(position)

        images = Watched(40, 0)
        batches = eval_batches(Source(images, np.zeros(40, np.int64), np.arange(40)), SPEC, 4)
        next(batches)
        batches.close()  # type: ignore[attr-defined]
        assert images.seen <= 8

    def test_an_image_that_can_not_be_read_is_heard_of(self) -> None:
        held = Source(Held(3, 0), np.zeros(5, np.int64), np.arange(5))
        with pytest.raises(IndexError):
            list(eval_batches(held, SPEC, 2))

    def test_one_channel(self) -> None:
        class Grey(Held):
            def __getitem__(self, position: int) -> np.ndarray:
                return super().__getitem__(position)[:, :, :1]

        grey = Source(Grey(3, 0), np.arange(3), np.arange(3))
        x, _ = next(eval_batches(grey, ImageSpec(size=(16, 24), channels=1)))
        assert x.shape == (3, 1, 16, 24)


def test_a_batch_keeps_its_bytes_where_they_are() -> None:
    held = np.random.RandomState(0).randint(0, 256, size=(2, 4, 5, 3)).astype(np.uint8)
    batch = as_batch(held)
    assert batch.shape == (2, 3, 4, 5)
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert batch.data_ptr() == held.ctypes.data
    assert batch[1, 2, 3, 4] == held[1, 3, 4, 2]


def test_batches_need_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders.os, "cpu_count", lambda: None)
    assert len(list(eval_batches(source(3, 0), SPEC, 1))) == 3
