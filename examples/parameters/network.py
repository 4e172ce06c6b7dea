"""A network of one hidden layer for scikit-learn's handwritten digits, in numpy alone; its weights are one vector."""

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

PIXELS, HIDDEN, DIGITS = 64, 512, 10
SHAPES = ((PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, DIGITS), (DIGITS,))
FLOATS = sum(int(np.prod(shape)) for shape in SHAPES)

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


def digits(training: bool) -> tuple[Floats, Labels]:
    """Images of 64 pixels from 0 to 1 and what they show: every fifth is for the test."""
    every = load_digits()
    chosen = (np.arange(len(every.target)) % 5 != 0) == training
    return (every.data[chosen] / 16).astype(np.float32), every.target[chosen].astype(np.int64)


def first_weights(seed: int = 0) -> Floats:
    """By He et al., "Delving Deep into Rectifiers" (2015): a variance of 2 divided by the number of inputs."""
    random, weights = np.random.default_rng(seed), np.zeros(FLOATS, np.float32)
    for part in _parts(weights):
        if part.ndim == 2:
            part[...] = random.normal(0, np.sqrt(2 / len(part)), part.shape)
    return weights


def gradient(weights: Floats, pixels: Floats, labels: Labels) -> Floats:
    """Of the mean cross entropy."""
    into, bias, out, _ = _parts(weights)
    hidden = np.maximum(pixels @ into + bias, 0)
    off = _probabilities(weights, hidden)
    off[np.arange(len(off)), labels] -= 1
    off /= len(off)
    back = (off @ out.T) * (hidden > 0)
    parts = (pixels.T @ back, back.sum(axis=0), hidden.T @ off, off.sum(axis=0))
    return np.concatenate([part.ravel() for part in parts])


def accuracy(weights: Floats, pixels: Floats, labels: Labels) -> float:
    """What part of the digits it gets right."""
    into, bias, _, _ = _parts(weights)
    guessed = _probabilities(weights, np.maximum(pixels @ into + bias, 0)).argmax(axis=1)
    return float((guessed == labels).mean())


def _parts(weights: Floats) -> list[Floats]:
    """Views of the vector."""
    parts, start = [], 0
    for shape in SHAPES:
        end = start + int(np.prod(shape))
        parts.append(weights[start:end].reshape(shape))
        start = end
    return parts


def _probabilities(weights: Floats, hidden: Floats) -> Floats:
    _, _, out, bias = _parts(weights)
    scores = hidden @ out + bias
    exponents = np.exp(scores - scores.max(axis=1, keepdims=True))
    normed: Floats = exponents / exponents.sum(axis=1, keepdims=True)
    return normed
