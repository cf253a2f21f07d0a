"""Augmentation: what is cut out, and that draws belong to their seed."""

import numpy as np
import pytest
import torch

from harmax.train.vision.augment import AutoAugment, blank, cut, generator, middle_crop, random_crop
from harmax.train.vision.data import ResidentData, generate_images
from harmax.train.world import World
from train.vision.small import spec


def test_cut_takes_windows_and_mirrors_them() -> None:
    padded = torch.arange(2 * 6 * 6 * 3).reshape(2, 6, 6, 3)
    chosen, top, left = torch.tensor([1, 0, 1]), torch.tensor([0, 2, 1]), torch.tensor([2, 0, 1])
    flip = torch.tensor([False, True, False])
    found = cut(padded, chosen, top, left, flip, side=4)
    wanted = [padded[1, 0:4, 2:6], padded[0, 2:6, 0:4].flip(1), padded[1, 1:5, 1:5]]
    assert torch.equal(found, torch.stack(wanted).permute(0, 3, 1, 2))
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_a_square_of_every_image_is_blanked_also_over_an_edge() -> None:
    images = torch.ones(3, 2, 5, 6)
    found = blank(images, torch.tensor([1, -2, 4]), torch.tensor([2, 0, 5]), side=3)
    wanted = images.clone()
    wanted[0, :, 1:4, 2:5] = wanted[1, :, :1, :3] = wanted[2, :, 4:, 5:] = 0
    assert torch.equal(found, wanted)
    assert torch.equal(images, torch.ones_like(images))


def test_cutout_blanks_around_any_pixel_and_leaves_the_rest_and_tests_alone() -> None:
    train, test, world = generate_images(256), generate_images(8, start=256), World(0, 1, torch.device("cpu"))
    plain, squares = (
        ResidentData(spec(cutout=side, batch=256, micro_batch=256), train, test, world) for side in (0, 4)
    )
    (before, _), (after, _) = next(plain.train(1)), next(squares.train(1))
    blanked = (after == 0).all(1)
    assert torch.equal(after, before.masked_fill(blanked[:, None], 0))
    sizes = {int(count) for count in blanked.sum((1, 2))}
    assert max(sizes) == 16
    assert min(sizes) == 4  # a corner's pixel, two to either side
    assert (blanked.any(0)).all()  # no pixel is never covered
    assert torch.equal(next(squares.train(1))[0], after)
    assert torch.equal(next(squares.test())[0], next(plain.test())[0])


def test_training_images_are_windows_of_reflected_ones() -> None:
    settings = spec(padding=2, flip=True, batch=8, micro_batch=8)
    train = generate_images(64)
    data = ResidentData(settings, train, generate_images(8, start=64), World(0, 1, torch.device("cpu")))
    images, labels = next(data.train(1))
    mean, std = (np.array(v)[:, None, None] for v in (data.preparation.mean, data.preparation.std))
    pixels = np.rint((images.numpy() * std + mean) * 255).astype(np.int64).transpose(0, 2, 3, 1)
    share = next(data.order.shares(1))
    mirrored = 0
    for image, label, index in zip(pixels, labels, share.chosen, strict=True):
        assert label == train.labels[index]
        around = np.pad(train.pixels[index], ((2, 2), (2, 2), (0, 0)), mode="reflect")
        windows = [around[top : top + 12, left : left + 12] for top in range(5) for left in range(5)]
        plain = any(np.array_equal(image, window) for window in windows)
        mirrored += not plain
        assert plain or any(np.array_equal(image, window[:, ::-1]) for window in windows)
    assert 0 < mirrored < 8


def test_plain_images_are_not_augmented_and_other_runs_share_them() -> None:
    settings = spec(padding=2, batch=8, micro_batch=8, seed=1)
    train = generate_images(20)
    data = ResidentData(settings, train, generate_images(5, start=20), World(0, 1, torch.device("cpu")))
    batches = list(data.plain("train", np.array([3, 19, 4, 0, 1, 2, 5, 6, 7])))
    assert [count for _, count in batches] == [8, 1]
    assert {len(images) for images, _ in batches} == {8}
    wanted = data.preparation.prepare(torch.from_numpy(train.pixels[[3, 19, 4]]))
    torch.testing.assert_close(batches[0][0][:3], wanted)
    assert [count for _, count in data.plain("test")] == [5]
    other = data.again(spec(padding=2, batch=8, micro_batch=8, seed=2, epochs=1))
    assert other.order.steps == data.order.steps // 2
    assert not torch.equal(next(other.train(1))[0], next(data.train(1))[0])
    same = ResidentData(other.order.spec, train, generate_images(5, start=20), World(0, 1, torch.device("cpu")))
    assert torch.equal(next(other.train(1))[0], next(same.train(1))[0])
    with pytest.raises(ValueError, match="`padding` must stay 2"):
        data.again(spec(padding=1))


def test_random_crops_stay_inside_and_reach_everywhere() -> None:
    """Every pixel holds its own row and column, so a crop says where it was."""
    rows, columns = np.mgrid[0:120, 0:90].astype(np.uint8)
    picture = np.stack([rows, columns, np.full_like(rows, 7)], axis=2)
    spans, flips = [], 0
    for epoch in range(300):
        square = random_crop(picture, 32, generator(4, 0, epoch, 0), flip=True).astype(int)
        assert square.shape == (32, 32, 3)
        assert (square[..., 2] == 7).all()
        backwards = square[0, 0, 1] > square[0, -1, 1]
        flips += backwards
        height, width = square[-1, 0, 0] - square[0, 0, 0], abs(square[0, -1, 1] - square[0, 0, 1])
        spans.append((height / 120) * (width / 90))
    assert 110 < flips < 190
    assert min(spans) < 0.15
    assert max(spans) > 0.7
    assert np.array_equal(
        random_crop(picture, 32, generator(4, 0, 5, 0), flip=True),
        random_crop(picture, 32, generator(4, 0, 5, 0), flip=True),
    )


def test_a_thin_picture_is_cut_in_the_middle() -> None:
    rows, columns = np.mgrid[0:4, 0:200].astype(np.uint8)
    square = random_crop(np.stack([rows, columns, rows], axis=2), 8, generator(1), flip=False)
    assert 90 < square[..., 1].min() <= square[..., 1].max() < 110


def test_the_middle_is_seven_eighths_of_the_shorter_side() -> None:
    rows, columns = np.mgrid[0:160, 0:240].astype(np.uint8)
    square = middle_crop(np.stack([rows, columns, rows], axis=2), 140).astype(int)
    assert square.shape == (140, 140, 3)
    assert (square[0, 0, 0], square[-1, 0, 0]) == (10, 149)
    assert (square[0, 0, 1], square[0, -1, 1]) == (50, 189)


def test_policies_are_drawn_for_each_image_and_belong_to_the_seed() -> None:
    augment = AutoAugment("imagenet")
    picture = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    images = picture.expand(64, -1, -1, -1).contiguous(memory_format=torch.channels_last)
    before = torch.get_rng_state()
    first, again, other = (augment(images, generator(3, seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == images.shape
    assert 0 <= first.min() <= first.max() <= 1
    assert len({tuple(image.flatten().tolist()) for image in first}) > 20  # one draw a batch would give a handful


def test_policies_do_the_same_to_an_image_whatever_autocast_says() -> None:
    augment, images = AutoAugment("cifar10"), torch.rand(8, 3, 16, 16)
    plain = augment(images, generator(3, 0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(augment(images, generator(3, 0)), plain)
