"""The figures' one language: every method can be told from every other, on white and on the dark ground."""

import re
from itertools import combinations

import pytest

from ogd.lab.catalogue import METHODS, looks
from ogd.lab.reporting.style import DARK, GROUND, INK, canvas, svg

VARIANTS = {"ewc": looks.EWC_UNTUNED, "ogd": looks.OGD_RENEWED, "der": looks.DER_MERGED}


def luminance(colour):
    """As the Web Content Accessibility Guidelines define it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_look_can_be_told_from_both_grounds_and_from_the_others():
    drawn = {name: method.look for name, method in METHODS.items() if isinstance(method.target, str)}
    drawn |= {f"{name}, varied": look for name, look in VARIANTS.items()}
    for name, look in drawn.items():
        for ground in (GROUND, DARK[GROUND]):
            colour = DARK.get(look.colour, look.colour) if ground != GROUND else look.colour
            assert contrast(colour, ground) > 2.2, (name, ground)
    assert len({(look.colour, look.marker) for look in drawn.values()}) == len(drawn)
    for one, other in combinations(drawn.values(), 2):
        assert one.colour != other.colour
    assert METHODS["ewc"].look.colour != VARIANTS["ewc"].colour


@pytest.mark.parametrize("colour", [INK, looks.MUTED])
def test_ink_follows_a_dark_scheme(colour):
    figure = canvas(2, 1)
    figure.text(0.5, 0.5, "text", color=colour)
    drawn = svg(figure)
    assert f"fill: {colour}" in drawn  # what a program without CSS draws
    (dark,) = re.findall(r"@media \(prefers-color-scheme:dark\)\{(.*)\}</style>", drawn)
    assert f'[style*="fill: {colour}"]{{fill:{DARK[colour]}!important}}' in dark
    assert 'id="patch_1"' in drawn
    assert f"#patch_1 path{{fill:{DARK[GROUND]}!important}}" in dark
    assert "prefers-color-scheme" not in svg(figure, text=True)  # the page has colours of its own
