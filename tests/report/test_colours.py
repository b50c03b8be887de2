"""Colours that survive: told apart by normal, deuteranopic and protanopic eyes, on paper and in the dark."""

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

from wellorder.policies import REGISTRY
from wellorder.report._style import LOOKS

APART = 15.0
"""CIEDE2000 between any two lines that only colour tells apart; of 2, one sees it side by side."""
CONTRAST = {"light": 2.3, "dark": 2.7}
"""With the card behind the lines (WCAG's measure)."""
WHITE_IN_THE_DARK = 0.2

# Machado, Oliveira and Fernandes (2009), "A physiologically-based model for simulation of color vision
# deficiency", IEEE TVCG 15(6): severity 1, on linear RGB.
EYES = {
    "normal": np.eye(3),
    "deuteranopia": np.array([
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881],
    ]),
    "protanopia": np.array([
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998],
    ]),
}  # fmt: skip
TO_XYZ = np.array([
    [0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041],
])  # fmt: skip


def linear(colour, white=0.0):
    """Linear RGB of ``#rrggbb``, with a share of white mixed in as the page does in the dark."""
    mixed = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255 * (1 - white) + white
    return np.where(mixed <= 0.04045, mixed / 12.92, ((mixed + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    x = np.clip(rgb, 0, 1) @ TO_XYZ.T / [0.95047, 1, 1.08883]
    f = np.where(x > 216 / 24389, np.cbrt(x), (24389 / 27 * x + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def ciede2000(one, other):
    """Sharma, Wu and Dalal (2005), "The CIEDE2000 color-difference formula"."""
    chroma = (np.hypot(*one[1:]) + np.hypot(*other[1:])) / 2
    stretch = 1.5 - 0.5 * np.sqrt(chroma**7 / (chroma**7 + 25.0**7))
    (l1, a1, b1), (l2, a2, b2) = one, other
    c1, c2 = np.hypot(stretch * a1, b1), np.hypot(stretch * a2, b2)
    h1, h2 = (np.degrees(np.arctan2(b, stretch * a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    hue = (h1 + turn / 2) % 360 if c1 * c2 else h1 + h2
    light, c = (l1 + l2) / 2, (c1 + c2) / 2
    waves = ((0.17, 1, -30), (-0.24, 2, 0), (-0.32, 3, 6), (0.20, 4, -63))
    t = 1 - sum(size * np.cos(np.radians(k * hue + shift)) for size, k, shift in waves)
    dl = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2))
    dc = (c2 - c1) / (1 + 0.045 * c)
    dh = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2)) / (1 + 0.015 * c * t)
    bend = 2 * np.sqrt(c**7 / (c**7 + 25.0**7)) * np.sin(np.radians(60 * np.exp(-(((hue - 275) / 25) ** 2))))
    return np.sqrt(dl**2 + dc**2 + dh**2 - bend * dc * dh)


def least_difference(one, other):
    """Over all eyes, on white and in the dark."""
    return min(
        ciede2000(*(lab(eyes @ linear(colour, white)) for colour in (one, other)))
        for eyes in EYES.values() for white in (0.0, WHITE_IN_THE_DARK)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 2.49, -0.001), (50, -2.49, 0.0011), 7.2195),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_measure_gives_its_authors_values(one, other, difference):
    assert ciede2000(np.array(one), np.array(other)) == pytest.approx(difference, abs=1e-4)


def test_policies_that_are_compared_unasked_and_those_of_ordered_differ_by_colour_alone():
    mine = [
        entry for entry in REGISTRY if entry.compared or entry.name in ("PairGraB", "Herding", "Steering")
    ]
    assert {entry.dash for entry in mine} == {"solid"}
    for one, other in combinations(mine, 2):
        assert least_difference(one.colour, other.colour) >= APART, f"{one.name} and {other.name}"


def test_any_two_policies_differ_by_colour_or_by_dash():
    for one, other in combinations(REGISTRY, 2):
        told = one.dash != other.dash or least_difference(one.colour, other.colour) >= APART
        assert told, f"{one.name} and {other.name}"


def test_colours_for_strangers_differ_as_much():
    solid = [look.colour for look in LOOKS if look.dash == "solid"]
    assert min(least_difference(*pair) for pair in combinations(solid, 2)) >= APART


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_stand_out_from_what_is_behind_them(theme):
    style = files("wellorder.report").joinpath("page.css").read_text(encoding="utf-8")
    cards = dict(zip(("light", "dark"), re.findall(r"--card: (#\w{6})", style), strict=False))
    share = re.search(r"color-mix\(in srgb, var\(--colour\) (\d+)%, white\)", style)[1]
    assert 1 - int(share) / 100 == pytest.approx(WHITE_IN_THE_DARK)
    white = WHITE_IN_THE_DARK if theme == "dark" else 0.0
    behind = float(TO_XYZ[1] @ linear(cards[theme]))
    for entry in REGISTRY:
        low, high = sorted((behind, float(TO_XYZ[1] @ linear(entry.colour, white))))
        assert (high + 0.05) / (low + 0.05) >= CONTRAST[theme], entry.name
