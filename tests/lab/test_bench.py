"""What `ogd bench` measures of a language model: its size is GPT-2's, and memory is that of one process alone."""

import subprocess
import sys

import pytest
import torch

from ogd.lab.bench import language_model


def test_the_writer_has_the_weights_of_a_gpt2():
    transformers = pytest.importorskip("transformers")
    ends = {"bos_token_id": None, "eos_token_id": None}
    sizes = {"n_embd": language_model.WIDTH, "n_layer": language_model.LAYERS, "n_head": 4}
    config = transformers.GPT2Config(vocab_size=5_000, n_positions=language_model.LENGTH, **sizes, **ends)
    wanted, found = transformers.GPT2LMHeadModel(config), language_model.Writer(5_000)
    assert sorted(p.numel() for p in found.parameters()) == sorted(p.numel() for p in wanted.parameters())


def test_no_word_of_the_writer_sees_later_ones():
    torch.manual_seed(0)
    model = language_model.Writer(50).eval()
    x, _ = language_model.texts(2, 50)
    other = x.clone()
    other[:, 40:] = (other[:, 40:] + 1) % 50
    z, changed = model(x), model(other)
    torch.testing.assert_close(z[:, :40], changed[:, :40])
    assert not torch.allclose(z[:, 40], changed[:, 40])


def test_a_text_is_kept_in_a_thousandth_of_its_scores():
    ratio = language_model.bytes_ratio()
    assert (ratio.key, ratio.low) == ("lm_bytes_ratio", ratio.median)
    kept = 64 * (33 * 2 + 32 * 2 + 4 + 4)  # log-probabilities, places, and two words in int32
    assert ratio.median == pytest.approx(64 * 50_257 * 4 / kept)


PEAKS = """
import torch
from ogd.lab.bench.resident import peak_bytes
before = peak_bytes()
x = torch.ones(50_000_000)
del x
print(peak_bytes() - before)
"""


def test_the_peak_is_what_was_held_at_most():
    done = subprocess.run([sys.executable, "-c", PEAKS], stdout=subprocess.PIPE, check=True)
    assert 190e6 < int(done.stdout) < 220e6


def test_rehearsal_takes_hardly_more_memory_than_plain_training():
    assert 0.9 < language_model.memory_ratio().median < 1.2
