"""Augmentation: every image is a flipped and shifted original, drawn evenly, the same for the same seed."""

import numpy as np
import pytest

from chains.data import Augment, Batches

DTYPES = [np.uint8, np.float32, np.float64]


def noise(n, shape=(3, 8, 9), dtype=np.uint8):
    return np.random.default_rng(0).integers(1, 256, (n, *shape)).astype(dtype)


def shifted(image, down, right):
    """`image` moved by so many pixels, one pixel after another."""
    result = np.zeros_like(image)
    rows, columns = image.shape[-2:]
    for i in range(rows):
        for j in range(columns):
            if 0 <= i - down < rows and 0 <= j - right < columns:
                result[..., i, j] = image[..., i - down, j - right]
    return result


def changes(image, shift):
    """All that may become of an image, by (flipped, down, right)."""
    moves = range(-shift, shift + 1)
    versions = {False: image, True: image[..., ::-1]}
    return {(flip, i, j): shifted(versions[flip], i, j) for flip in versions for i in moves for j in moves}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(8, 9), (3, 8, 9), (1, 2, 8, 9)])
def test_every_image_is_an_original_flipped_and_shifted(dtype, shape):
    x = noise(1, shape, dtype)
    possible = changes(x[0], 2)
    result = Augment(shift=2)(np.repeat(x, 400, 0), np.random.default_rng(3))
    assert result.dtype == dtype
    found = {key for image in result for key, version in possible.items() if np.array_equal(image, version)}
    assert len(found) == 50
    assert all(any(np.array_equal(image, version) for version in possible.values()) for image in result)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("shift", [0, 1, 7])
def test_settings(flip, shift):
    x = noise(40)
    before = x.copy()
    result = Augment(flip=flip, shift=shift)(x, np.random.default_rng(0))
    assert not np.shares_memory(result, x)
    np.testing.assert_array_equal(x, before)
    for image, original in zip(result, x, strict=True):
        keys = [key for key, version in changes(original, shift).items() if np.array_equal(image, version)]
        assert keys
        assert flip or not keys[0][0]
    assert np.array_equal(result, x) == (not flip and not shift)


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_the_same_for_the_same_seed(shuffle):
    x, t = noise(50), np.arange(50)

    def epochs(seed):
        batches = Batches(x, t, batch_size=16, seed=seed, shuffle=shuffle, augment=Augment(shift=2))
        return [[(a.tobytes(), b.tolist()) for a, b in batches] for _ in range(2)]

    first, second = epochs(1)
    assert [first, second] == epochs(1)
    assert first != second
    assert first != epochs(2)[0]


def test_batches_keep_images_with_their_labels_and_the_data_as_they_are():
    x, t = noise(50), np.arange(50)
    before = x.copy()
    plain = list(Batches(x, t, batch_size=16, seed=1))
    for (a, labels), (_, wanted) in zip(Batches(x, t, batch_size=16, seed=1, augment=Augment(shift=1)), plain, strict=True):
        np.testing.assert_array_equal(labels, wanted)
        for image, label in zip(a, labels, strict=True):
            assert any(np.array_equal(image, version) for version in changes(x[label], 1).values())
    np.testing.assert_array_equal(x, before)


def test_an_augmentation_of_ones_own():
    batches = Batches(np.ones((6, 2)), batch_size=3, augment=lambda x, rng: x + rng.random(x.shape))
    assert all((x > 1).all() for (x,) in batches)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match=r"`shift` \(=-1\)"):
        Augment(shift=-1)
    with pytest.raises(TypeError, match=r"`shift` \(=1.5\)"):
        Augment(shift=1.5)
    with pytest.raises(ValueError, match=r"shifted by up to 4 pixels must have .*, got \(5, 3, 4, 9\)"):
        Batches(noise(5, (3, 4, 9)), batch_size=2, augment=Augment())
    with pytest.raises(ValueError, match=r"got \(5, 20\)"):
        Batches(np.zeros((5, 20)), batch_size=2, augment=Augment())
    with pytest.raises(TypeError, match=r"`augment` \(=True\)"):
        Batches(noise(5), batch_size=2, augment=True)
    with pytest.raises(TypeError, match="`augment`"):
        Batches(noise(5), batch_size=2, augment=Augment)


def test_only_a_generator_draws():
    with pytest.raises(TypeError, match=r"`rng` \(=3\) must be a Generator"):
        Augment(shift=2)(np.zeros((2, 8, 8)), 3)
    images = np.arange(128).reshape(2, 8, 8)
    drawn = [Augment(shift=2)(given, np.random.default_rng(0)) for given in (images, images.tolist())]
    np.testing.assert_array_equal(*drawn)


def test_functions_that_are_no_augmentation():
    with pytest.raises(TypeError, match=r"`augment`.*must be a function of images and a random generator"):
        Batches(np.zeros((4, 8, 8)), batch_size=2, augment=lambda images: images)
    batches = Batches(np.zeros((4, 8, 8)), batch_size=2, augment=lambda images, rng: None)
    with pytest.raises(TypeError, match=r"`augment`.*must return an array of images, got a NoneType"):
        next(iter(batches))
