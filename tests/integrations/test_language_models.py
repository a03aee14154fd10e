"""Hugging Face's language models: what a label is, few bytes, checkpointing, packed texts, errors before training."""

import copy

import pytest
import torch

import ogd

HF = "is not installed: pip install 'ogd[hf]'"
transformers = pytest.importorskip("transformers", reason=f"transformers {HF}")
peft = pytest.importorskip("peft", reason=f"peft {HF}")

from small_bert import train  # noqa: E402

from ogd.integrations.transformers import OGDCallback, next_tokens  # noqa: E402
from ogd.memory.data.calling import scores  # noqa: E402

WORDS = 5000
SMALL = {"vocab_size": WORDS, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}


def gpt2(**options):
    torch.manual_seed(0)
    config = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, **options}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**config))


def llama(**options):
    torch.manual_seed(0)
    config = {**SMALL, "num_hidden_layers": 2, "max_position_embeddings": 64, **options}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))


def lora():
    return peft.get_peft_model(gpt2(), peft.LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM"))


def t5():
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(vocab_size=WORDS, decoder_start_token_id=0, pad_token_id=0, **sizes)
    return transformers.T5ForConditionalGeneration(config)


def bart():
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    return transformers.BartForConditionalGeneration(transformers.BartConfig(vocab_size=WORDS, **sizes, **heads))


def tagger():
    torch.manual_seed(0)
    return transformers.BertForTokenClassification(transformers.BertConfig(**SMALL, num_hidden_layers=1, num_labels=7))


def masked():
    torch.manual_seed(0)
    return transformers.BertForMaskedLM(transformers.BertConfig(**SMALL, num_hidden_layers=1))


def texts(n=6, T=12, seed=0):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, WORDS, (n, T), generator=g)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def noisy(**sizes):
    """Labels are the text, inputs have noise in a tenth of the tokens, and some labels are ignored."""
    batch = texts(**sizes)
    g = torch.Generator().manual_seed(1)
    noise = torch.rand(batch["labels"].shape, generator=g) < 0.1
    batch["input_ids"] = torch.where(noise, torch.randint(5, WORDS, noise.shape, generator=g), batch["input_ids"])
    batch["labels"][:, :3] = -100  # a prompt
    return batch


def tags():
    batch = texts()
    batch["labels"] = torch.randint(7, batch["labels"].shape)
    batch["labels"][0, 5:] = -100
    return batch


def translations():
    batch = texts()
    batch["labels"] = batch["input_ids"].flip(1)[:, :9].clone()
    batch["labels"][0, 6:] = -100
    return batch


CASES = {
    "gpt2": (gpt2, texts),
    "gpt2, noise and prompts": (gpt2, noisy),
    "llama": (llama, noisy),
    "gpt2 with LoRA": (lora, noisy),
    "t5": (t5, translations),
    "bart": (bart, translations),
    "tags": (tagger, tags),
    "masked words": (masked, noisy),
}


@pytest.mark.parametrize("name", CASES)
def test_the_label_term_is_the_models_own_loss(name):
    make, data = CASES[name]
    model, batch = make(), data()
    torch.nn.init.normal_(model.get_output_embeddings().weight) if model.get_output_embeddings() is not None else None
    memory = ogd.ExampleMemory(model, per_task=None)
    memory.remember(batch)
    model.eval()
    own = [model(**{key: value[i : i + 1] for key, value in batch.items()}).loss for i in range(6)]
    wanted = torch.stack(own).mean()  # of each example with its own tokens
    torch.testing.assert_close(memory.remembered_loss(6), wanted, rtol=1e-4, atol=2e-3)
    assert memory.stats().drift[0] < 5e-3
    if model.config.vocab_size == WORDS and name != "tags":
        assert memory.nbytes / 6 < 12 * 200
    measured = ogd.forgetting(model, {"old": batch}, measure="accuracy")["old"]
    with torch.no_grad():
        z, y = model(**batch).logits, batch["labels"]
    if not (model.config.is_encoder_decoder or name in ("tags", "masked words")):
        z, y = z[:, :-1], y[:, 1:]
    assert measured == pytest.approx(float((z.argmax(-1) == y)[y != -100].double().mean()))


def test_a_model_whose_loss_shows_nothing_needs_a_word():
    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = gpt2()

        def forward(self, input_ids):
            return self.model(input_ids).logits

    data = {"input_ids": texts()["input_ids"], "labels": texts()["labels"]}
    model = Wrapped()
    with pytest.raises(ValueError, match=r"shift_labels=True\) for the next token"):
        ogd.ExampleMemory(model).remember(data)
    memory = ogd.ExampleMemory(model, shift_labels=True)
    memory.remember(data)
    torch.testing.assert_close(
        memory.remembered_loss(6), model.model.eval()(**data).loss, rtol=1e-3, atol=1e-3, check_dtype=False
    )


@pytest.mark.parametrize("adapted", [False, True])
def test_a_loss_that_also_balances_experts_is_known_by_its_name(adapted):
    """Of noisy inputs nothing else would show it, and tokens would be rehearsed in their places."""
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "num_key_value_heads": 1, "num_local_experts": 2, "output_router_logits": True}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**SMALL, **sizes))
    if adapted:
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    batch = noisy()
    memory = ogd.ExampleMemory(model, per_task=None)
    memory.remember(batch)
    with torch.no_grad():
        z = model.eval()(**batch).logits
    own = torch.nn.functional.cross_entropy(z[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
    torch.testing.assert_close(memory.remembered_loss(6), own, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("make", [gpt2, llama])
def test_rehearsal_checkpoints_as_the_users_forward_pass_does(make):
    """Gradients are those without checkpointing, dropout stays off, and each layer is called again."""
    gradients, calls = [], []
    options = {"attn_pdrop": 0.3, "resid_pdrop": 0.3, "embd_pdrop": 0.3} if make is gpt2 else {"attention_dropout": 0.3}
    for checkpoints in (False, True):
        model = make(**options)
        if checkpoints:
            model.gradient_checkpointing_enable({"use_reentrant": True})  # which autograd.grad does not take
        memory = ogd.ExampleMemory(model, per_task=None)
        memory.remember(noisy())
        optimizer = torch.optim.SGD(model.parameters(), lr=0)
        memory.protect(optimizer, every=1)
        model.train()
        layer = (model.transformer.h if make is gpt2 else model.model.layers)[0]
        count, inner = [], (layer.mlp)
        # before it, because the second call stops as soon as all tensors are there
        handle = inner.register_forward_pre_hook(lambda module, *_, count=count: count.append(module.training))
        optimizer.step()
        handle.remove()
        calls.append(count)
        gradients.append([p.grad for p in model.parameters()])
        assert all(module.training for module in model.modules())
        assert model.config.use_cache
    assert calls == [[False], [False, False]]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_texts_that_a_collator_packs_are_kept_one_by_one():
    model = llama()
    rows = [{"input_ids": list(range(5, 8 + i % 4))} for i in range(12)]
    collator = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    loader = torch.utils.data.DataLoader(rows, 3, collate_fn=collator)
    memory = ogd.ExampleMemory(model, per_task=200)
    memory.remember(loader)
    assert memory.task_sizes == (12,)
    model.eval()
    own = torch.stack([model(**collator([row])).loss for row in rows]).mean()
    torch.testing.assert_close(memory.remembered_loss(12), own, rtol=1e-3, atol=1e-3)


def test_rows_that_are_packed_already_are_kept_as_they_are():
    model = llama().eval()
    collator = transformers.DataCollatorWithFlattening()
    rows = [collator([{"input_ids": list(range(5 + i, 9 + i + k))} for k in range(3)]) for i in range(4)]
    assert {tuple(row["input_ids"].shape) for row in rows} == {(1, 15)}
    memory = ogd.ExampleMemory(model, per_task=200)
    memory.remember(torch.utils.data.DataLoader(rows, batch_size=None))
    assert memory.task_sizes == (4,)  # rows of three texts
    own = (
        torch.stack([model(**row, use_cache=False).loss for row in rows]).mean().detach()
    )  # a cache would mix the texts
    torch.testing.assert_close(memory.remembered_loss(4), own, rtol=1e-3, atol=1e-3)
    assert ogd.forgetting(model, {"old": torch.utils.data.DataLoader(rows, batch_size=None)})["old"] == pytest.approx(
        float(own), rel=1e-4
    )
    whole = {key: torch.cat([row[key] for row in rows]) for key in rows[0]}
    together = scores(model, {key: value for key, value in whole.items() if key != "labels"}, None)
    torch.testing.assert_close(together, torch.cat([model(**row, use_cache=False).logits for row in rows]))


def test_packed_rows_with_the_arguments_of_flash_attention(tmp_path):
    """TRL's packing and transformers' flattening add the ends of the texts, which do not share the first axis."""
    trl = pytest.importorskip("trl", reason="trl is not installed")
    rows = [{"input_ids": list(range(5, 13 + i % 4)), "seq_lengths": [3, 5 + i % 4]} for i in range(8)]
    collators = (
        trl.trainer.sft_trainer.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True),
        transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True),
    )
    for collator in collators:
        model = llama()
        loader = torch.utils.data.DataLoader(rows, 2, collate_fn=collator)
        assert "cu_seq_lens_q" in next(iter(loader))
        memory = ogd.ExampleMemory(model, per_task=200)
        memory.remember(loader)
        assert memory.task_sizes == (8,)
        model.eval()
        each = torch.utils.data.DataLoader(rows, 1, collate_fn=collator)
        own = torch.stack([model(**row).loss for row in each]).mean()
        torch.testing.assert_close(memory.remembered_loss(8), own, rtol=1e-3, atol=1e-3)


def test_gradients_of_a_language_model_are_refused_before_training(tmp_path):
    data = [{key: value[i] for key, value in texts().items()} for i in range(6)]
    cases = [(gpt2, {}), (gpt2, {"outputs": "all"}), (t5, {}), (t5, {"outputs": "all"}), (t5, {"outputs": next_tokens})]
    for make, options in cases:
        model = make()
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError, match=r"use ogd.ExampleMemory\(model\)"):
            train(model, OGDCallback(ogd.GradientMemory, **options), data, tmp_path)
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_directions_of_next_tokens_need_labels():
    memory = ogd.GradientMemory(gpt2(), outputs=next_tokens)
    data = {key: value for key, value in texts().items() if key != "labels"}
    with pytest.raises(ValueError, match=r"next_tokens needs labels, .* use ogd.ExampleMemory\(model\)"):
        memory.remember(data)


def test_the_trial_before_training_changes_nothing(tmp_path):
    data = [{key: value[i] for key, value in texts().items()} for i in range(6)]
    found = []
    for remember in (True, False):
        model = gpt2()
        train(model, OGDCallback(per_task=4, remember=remember), data, tmp_path, max_steps=4)
        found.append(model.state_dict())
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def test_trainer_remembers_and_rehearses_an_encoder_decoder(tmp_path):
    batch = translations()
    data = [{key: value[i] for key, value in batch.items()} for i in range(6)]
    model, callback = t5(), OGDCallback(per_task=4)
    for _ in range(2):
        train(model, callback, data, tmp_path, max_steps=3)
    assert callback.memory.task_sizes == (4, 4)
