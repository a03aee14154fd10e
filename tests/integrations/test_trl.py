"""TRL's own SFTTrainer: texts packed or not, prompts with completions, LoRA, and what was forgotten in its logs."""

import pytest
import torch

HF = "is not installed: pip install 'ogd[hf]'"
transformers = pytest.importorskip("transformers", reason=f"transformers {HF}")
peft = pytest.importorskip("peft", reason=f"peft {HF}")
trl = pytest.importorskip("trl", reason="trl is not installed: pip install trl")
datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install trl")
tokenizers = pytest.importorskip("tokenizers", reason=f"tokenizers {HF}")

from ogd.integrations.transformers import OGDCallback  # noqa: E402

LETTERS = ["<pad>", "<eos>", "<unk>", *map(chr, range(32, 127))]
TEXTS = [{"text": f"the sum of {i} and {i * i} is {i + i * i}"} for i in range(30)]
ANSWERS = [{"prompt": f"the sum of {i} and {i * i} is", "completion": f" {i + i * i}"} for i in range(30)]


@pytest.fixture(scope="module")
def tokenizer():
    model = tokenizers.models.WordLevel({letter: i for i, letter in enumerate(LETTERS)}, unk_token="<unk>")
    letters = tokenizers.Tokenizer(model)
    letters.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=letters, **names)


def llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    names = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    config = transformers.LlamaConfig(vocab_size=len(LETTERS), max_position_embeddings=512, **sizes, **names)
    return transformers.LlamaForCausalLM(config)


def trainer(model, callback, data, tokenizer, folder, *, past=None, lora=None, **options):
    args = trl.SFTConfig(
        str(folder),
        **{"max_steps": 3, "per_device_train_batch_size": 3, "max_length": 64, "bf16": False, **options},
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    data = datasets.Dataset.from_list(data)
    made = trl.SFTTrainer(
        model,
        args=args,
        train_dataset=data,
        eval_dataset=data,
        processing_class=tokenizer,
        callbacks=[callback],
        peft_config=lora,
    )
    if past is not None:
        callback.watch(made, past)
    made.train()
    return made


OPTIONS = {
    "texts": {},
    "packed": {"packing": True},
    "packed, checkpointed, bfloat16": {"packing": True, "gradient_checkpointing": True, "bf16": True},
    "cut": {"packing": True, "packing_strategy": "wrapped"},
}


@pytest.mark.parametrize("data", [TEXTS, ANSWERS], ids=["texts", "prompts"])
@pytest.mark.parametrize("name", OPTIONS)
def test_each_item_of_the_data_set_is_kept_with_the_models_own_loss(name, data, tokenizer, tmp_path):
    callback = OGDCallback(per_task=100)
    made = trainer(llama(), callback, data, tokenizer, tmp_path, **OPTIONS[name])
    memory, model = callback.memory, made.model.eval()
    items = [made.data_collator([item]) for item in made.train_dataset]
    assert memory.task_sizes == (len(items),)
    assert (len(items) < len(data)) == ("packing" in OPTIONS[name])
    with torch.no_grad():
        losses = torch.stack([model(**item, use_cache=False).loss for item in items])
    own = losses.nan_to_num(0).mean()  # the last row may have no label
    torch.testing.assert_close(memory.remembered_loss(100), own, rtol=1e-4, atol=1e-4)
    assert memory.stats().drift[0] < 1e-4
    rows = []
    handle = model.model.register_forward_pre_hook(lambda *a: rows.append(a[2]["input_ids"].shape[0]), with_kwargs=True)
    memory.remembered_loss(100)
    handle.remove()
    if "position_ids" in items[0]:
        assert set(rows) == {1}  # flash attention tells packed texts apart in a single row only
        assert len(rows) < len(items)  # rows of one length go through the model together


def test_lora_on_packed_texts_forgets_less_of_them(tokenizer, tmp_path):
    losses = []
    for remember in (False, True):
        callback, past = OGDCallback(per_task=100, remember=remember), {}
        lora = peft.LoraConfig(r=8, task_type="CAUSAL_LM", target_modules="all-linear")
        capitals = [{"text": text["text"].upper()} for text in TEXTS]
        options = {"packing": True, "learning_rate": 1e-2, "max_steps": 40}
        first = trainer(llama(), callback, TEXTS, tokenizer, tmp_path, past=past, lora=lora, **options)
        past = {"first": first.eval_dataset}
        second = trainer(first.model, callback, capitals, tokenizer, tmp_path, past=past, **options)
        logs = second.state.log_history
        found = [entry["eval_first_forgetting"] for entry in logs if "eval_first_forgetting" in entry]
        assert len(found) == 2  # at the beginning and the end
        assert found[0] == 0
        assert all("eval_first_loss" in entry for entry in logs[:1])
        losses.append(found[-1])
    plain, protected = losses
    assert plain > 0.05
    assert protected < plain / 2
