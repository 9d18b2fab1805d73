"""Models of transformers and peft as they are: tiny random ones, against plain autograd over all tokens."""

import copy
import os
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import resolvent as rs

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")
if find_spec("peft") is None:  # not imported yet: it takes seconds, and not every process that collects runs these
    pytest.skip("no peft", allow_module_level=True)
pytestmark = [
    pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*peft:UserWarning"),
]
VOCABULARY = 40
TOLERANCE = 1e-5
"""Relative. Losses are means over about a hundred tokens in single precision, whatever the type of the model."""


def gpt2(**options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0, **options
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def bert(head: str, **options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16, **options,
    )  # fmt: skip
    return getattr(transformers, f"BertFor{head}")(config)


def adapted(model: Any, train_a: bool = True) -> Any:
    import peft

    torch.manual_seed(1)
    lora = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, lora)
    for name, p in model.named_parameters():
        if "lora_A" in name:
            p.requires_grad_(train_a)
    return model


def texts(sizes: Any = (3, 5, 4), seed: int = 2) -> list[list[Tensor]]:
    g = torch.Generator().manual_seed(seed)
    lengths = [[int(torch.randint(3, 12, (), generator=g)) for _ in range(n)] for n in sizes]
    return [[torch.randint(1, VOCABULARY, (length,), generator=g) for length in own] for own in lengths]


def padded(rows: list[Tensor]) -> dict[str, Tensor]:
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def equally_padded(users: list[list[Tensor]]) -> list[dict[str, Tensor]]:
    whole = padded([row for rows in users for row in rows])
    ends = np.cumsum([0, *map(len, users)])
    return [{key: t[a:b] for key, t in whole.items()} for a, b in pairwise(ends)]


def trained(model: nn.Module) -> list[Any]:
    return [p for p in model.parameters() if p.requires_grad]


def slope(model: Any, w: Tensor, loss: Any) -> Tensor:
    """The gradient of a loss of the module at parameters w, without dropout, by plain autograd."""
    model = copy.deepcopy(model).eval()
    nn.utils.vector_to_parameters(w, trained(model))
    loss(model).backward()
    return torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in trained(model)])


def token_mean(model: Any, rows: list[Tensor]) -> Tensor:
    """The mean loss over all next tokens of some texts, text by text without padding, token by token."""
    losses = [
        -model(input_ids=row[None]).logits[0, k - 1].log_softmax(-1)[row[k]] for row in rows for k in range(1, len(row))
    ]
    return torch.stack(losses).mean()


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def nearby(problem: Any) -> Tensor:
    g = torch.Generator().manual_seed(3)
    return problem.start + 0.1 * torch.randn(problem.users, problem.dim, generator=g)


MODELS = {
    "gpt2": gpt2,
    "llama": llama,
    "gpt2 with LoRA": lambda: adapted(gpt2()),
    "gpt2 with LoRA, A frozen": lambda: adapted(gpt2(), train_a=False),
}


@pytest.mark.parametrize("loaders", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_minimised_is_the_mean_over_all_tokens(name: str, loaders: bool) -> None:
    model, rows = MODELS[name](), texts()
    before = copy.deepcopy(model.state_dict())
    loaded: Any = [DataLoader(own, 2, collate_fn=padded) for own in rows]  # type: ignore[arg-type]
    problem = rs.Neural(model, loaded if loaders else equally_padded(rows), weights="tokens")
    assert problem.dim == sum(p.numel() for p in trained(model))
    W = nearby(problem)
    for w, own, grad in zip(W, rows, problem.grad(W), strict=True):
        assert apart(grad, slope(model, w, lambda m, own=own: token_mean(m, own))) < TOLERANCE
    every = [row for own in rows for row in own]
    whole = slope(model, W[0], lambda m: token_mean(m, every))
    assert apart(problem.weights @ problem.grad(W[:1].expand(3, -1)), whole) < TOLERANCE
    assert all(torch.equal(t, before[key]) for key, t in model.state_dict().items())


def test_doubles_are_trained_with_a_loss_in_single_precision() -> None:
    model, rows = gpt2(), texts()
    problem = rs.Neural(model, equally_padded(rows), dtype=torch.float64)
    W = nearby(problem)
    for w, own, grad in zip(W, rows, problem.grad(W), strict=True):
        assert apart(grad, slope(model.double(), w, lambda m, own=own: token_mean(m, own))) < TOLERANCE


def test_tokens_and_whole_texts_are_classified() -> None:
    rows = [padded(own) for own in texts()]
    width = max(batch["input_ids"].shape[1] for batch in rows)
    rows = [
        {k: F.pad(t, (0, width - t.shape[1]), value=-100 if k == "labels" else 0) for k, t in b.items()} for b in rows
    ]
    tokens = [b | {"labels": torch.where(b["labels"] < 0, -100, b["labels"] % 3)} for b in rows]
    classes = [b | {"labels": b["input_ids"][:, 0] % 3} for b in rows]
    numbers = [b | {"labels": b["input_ids"][:, 0] / VOCABULARY} for b in rows]
    cases = [
        (bert("TokenClassification", num_labels=3), tokens, True),
        (bert("SequenceClassification", num_labels=3), classes, True),
        (bert("SequenceClassification", num_labels=1), numbers, False),
    ]
    for model, users, named in cases:
        problem = rs.Neural(model, users, weights="tokens", test=users)
        counts = torch.tensor([float((u["labels"] != -100).sum()) for u in users])
        assert torch.allclose(problem.weights, counts / counts.sum())
        W = nearby(problem)
        for w, user, grad in zip(W, users, problem.grad(W), strict=True):
            assert apart(grad, slope(model, w, lambda m, user=user: m(**user).loss)) < TOLERANCE
        run = rs.solve(problem, rs.fedavg(0.1), rounds=1, metrics=["accuracy" if named else "rmse"])
        module = run.module().eval()
        with torch.no_grad():
            o, y = (torch.cat(part) for part in zip(*((module(**u).logits, u["labels"]) for u in users), strict=True))
        real = y != -100
        right = (o.argmax(-1) == y)[real].double().mean() if named else (o[:, 0] - y).square().mean().sqrt()
        assert run.history.iloc[-1]["test_accuracy" if named else "test_rmse"] == pytest.approx(float(right), rel=1e-5)


def test_numbers_as_labels_come_from_loaders_too() -> None:
    """One number per text, and several yes or no."""

    def collate(rows: list[Tensor]) -> dict[str, Tensor]:
        batch = padded(rows)
        shares = torch.stack([batch["input_ids"][:, 0] % k == 0 for k in (2, 3, 5)][:many], 1).float()
        return batch | {"labels": shares if many > 1 else shares[:, 0]}

    rows = texts()
    loaders: Any = [DataLoader(own, 2, collate_fn=collate) for own in rows]  # type: ignore[arg-type]
    for many, kind in ((1, "regression"), (3, "multi_label_classification")):
        model = bert("SequenceClassification", num_labels=many, problem_type=kind)
        problem = rs.Neural(model, loaders)
        W = nearby(problem)
        for w, own, grad in zip(W, rows, problem.grad(W), strict=True):
            assert apart(grad, slope(model, w, lambda m, own=own: m(**collate(own)).loss)) < TOLERANCE


def test_texts_of_one_token_count_nothing() -> None:
    model, rows = gpt2(), texts()
    short: Any = [DataLoader(own, 1, collate_fn=padded) for own in ([rows[0][0][:1], *rows[0]], rows[1])]  # type: ignore[arg-type]
    problem = rs.Neural(model, short, weights="tokens")
    counts = torch.tensor([float(sum(len(row) - 1 for row in own)) for own in rows[:2]])
    assert torch.allclose(problem.weights, counts / counts.sum())
    W = nearby(problem)
    for w, own, grad in zip(W, rows[:2], problem.grad(W), strict=True):
        assert apart(grad, slope(model, w, lambda m, own=own: token_mean(m, own))) < TOLERANCE
    alone: Any = DataLoader([row[:1] for row in rows[0]], 2, collate_fn=padded)  # type: ignore[arg-type]
    with pytest.raises(rs.InputError, match=r"users\[0\] is without a row that the loss counts"):
        rs.Neural(model, [alone, short[1]])


def test_a_pair_of_a_dict_and_targets_takes_any_loss() -> None:
    users = [({k: t for k, t in b.items() if k != "labels"}, b["labels"][:, 0] % 3) for b in equally_padded(texts())]
    model = bert("SequenceClassification", num_labels=3)
    problem = rs.Neural(model, users)
    W = nearby(problem)
    for w, (x, y), grad in zip(W, users, problem.grad(W), strict=True):
        assert apart(grad, slope(model, w, lambda m, x=x, y=y: F.cross_entropy(m(**x).logits, y))) < TOLERANCE


def test_an_encoder_and_a_decoder_with_lengths_of_their_own() -> None:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    model, rows = transformers.T5ForConditionalGeneration(config), texts((4, 5))

    def collate(rows: list[Tensor]) -> dict[str, Tensor]:
        batch = padded(rows)
        return batch | {"labels": padded([row[: 1 + len(row) // 2] for row in rows])["labels"]}

    loaders: Any = [DataLoader(own, 2, collate_fn=collate) for own in rows]  # type: ignore[arg-type]
    problem = rs.Neural(model, loaders)
    W = nearby(problem)
    for w, own, grad in zip(W, rows, problem.grad(W), strict=True):
        assert apart(grad, slope(model, w, lambda m, own=own: m(**collate(own)).loss)) < TOLERANCE


def test_a_trained_model_generates_and_is_saved(tmp_path: Path) -> None:
    model = gpt2(tie_word_embeddings=True)
    users = equally_padded(texts())
    problem = rs.Neural(model, users, weights="tokens", test=users)
    perplexity = ["perplexity"]
    scheme = rs.fedavg(0.1, local=rs.GradientSteps(1, batch=2))
    run = rs.solve(problem, scheme, rounds=3, metrics=perplexity)
    assert run.history.value.is_monotonic_decreasing
    assert run.history.iloc[-1].test_perplexity == pytest.approx(np.exp(run.history.iloc[-1].test_loss), rel=1e-5)
    module: Any = run.module().eval()
    assert module.lm_head.weight is module.transformer.wte.weight
    given = torch.tensor([[3, 5]])
    said = module.generate(given, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert said.shape[1] > 2
    module.save_pretrained(tmp_path / "model")
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "model").eval()
    assert torch.equal(again(given).logits, module(given).logits)
    run.save(tmp_path / "run")
    opened = rs.open(tmp_path / "run")
    assert torch.equal(opened.module(into=gpt2(tie_word_embeddings=True)).eval()(given).logits, module(given).logits)
    rest = rs.solve(problem, scheme, rounds=3, start=opened.state, metrics=perplexity)
    assert torch.equal(rest.model, rs.solve(problem, scheme, rounds=6).model)


def test_weights_that_a_library_draws_are_not_drawn_by_a_seed() -> None:
    """Embeddings would have a deviation of 1 in place of 0.02, and adapters would not begin at zero."""
    rows, classes = equally_padded(texts()), [{**b, "labels": b["labels"][:, 0] % 3} for b in equally_padded(texts())]
    for problem, sentence in (
        (rs.Neural(bert("SequenceClassification", num_labels=3), classes), "a BertForS.* by transformers"),
        (rs.Neural(adapted(gpt2()), rows), "a PeftModelForCausalLM, .* by peft"),
    ):
        for ask in (rs.solve, rs.compare):
            with pytest.raises(rs.InputError, match=f"start is 'random', but the model, {sentence}, .* per seed"):
                ask(problem, rs.fedavg(0.1), rounds=1, start="random")
    made = [rs.Neural(bert("SequenceClassification", num_labels=3), classes) for _ in range(2)]
    assert len(rs.solve_seeds(made, rs.fedavg(0.1), seeds=[0, 1], rounds=1)) == 2


def test_users_of_one_length_are_vectorised_with_their_masks() -> None:
    rows = [padded([row[:6].repeat(3)[:n] for row, n in zip(own, (8, 6, 7), strict=True)]) for own in texts((3, 3))]
    model = adapted(gpt2()).eval()
    by_loop, vectorised = (rs.Neural(model, rows, weights="tokens", method=m) for m in ("loop", "vmap"))
    W = nearby(by_loop)
    assert vectorised.method.startswith("vmap")
    assert apart(vectorised.grad(W), by_loop.grad(W)) < TOLERANCE
    assert "sdpa" in str(model.config._attn_implementation)  # the model that was given is as it was


def test_accuracy_and_score_count_the_labels_that_the_loss_counts() -> None:
    users, model = equally_padded(texts()), gpt2()
    problem = rs.Neural(model, users, test=users)
    run = rs.solve(problem, rs.fedavg(0.1), rounds=1)
    module, shares = run.module().eval(), []
    with torch.no_grad():
        for user in users:
            said, y = module(**user).logits[:, :-1].argmax(-1), user["labels"][:, 1:]
            shares.append((said == y)[y != -100])
    assert run.history.iloc[-1]["test_accuracy"] == pytest.approx(float(torch.cat(shares).double().mean()), rel=1e-5)
    assert run.score(users[0]) == pytest.approx(float(shares[0].double().mean()))
    assert run.predict(users[0]).shape == (*users[0]["input_ids"].shape, VOCABULARY)
    with pytest.raises(rs.InputError, match='or a batch X that has "labels"'):
        run.score(users[0]["input_ids"])


def test_a_pair_of_a_tensor_and_targets_takes_any_loss() -> None:
    users = [(b["input_ids"], b["labels"][:, 0] % 3) for b in equally_padded(texts())]
    model = bert("SequenceClassification", num_labels=3)
    problem = rs.Neural(model, users)
    W = nearby(problem)
    for w, (x, y), grad in zip(W, users, problem.grad(W), strict=True):
        assert apart(grad, slope(model, w, lambda m, x=x, y=y: F.cross_entropy(m(x).logits, y))) < TOLERANCE
    run = rs.solve(problem, rs.fedavg(0.1), rounds=1)
    assert run.predict(users[0][0]).shape == (len(users[0][1]),)


def test_a_classifier_that_computes_its_loss_predicts_classes() -> None:
    users = [{**b, "labels": b["labels"][:, 0] % 3} for b in equally_padded(texts())]
    run = rs.solve(rs.Neural(bert("SequenceClassification", num_labels=3), users), rs.fedavg(0.1), rounds=1)
    with torch.no_grad():
        classes = run.module().eval()(**users[0]).logits.argmax(1).numpy()
    assert np.array_equal(run.predict(users[0]), classes)
    assert run.score(users[0]) == pytest.approx(float((classes == users[0]["labels"].numpy()).mean()))
    with pytest.raises(rs.InputError, match=r"run\.module\(\)\.eval\(\)"):
        run.predict_proba(users[0])


def test_gradient_checkpointing_changes_nothing() -> None:
    users, model = equally_padded(texts()), gpt2()
    plain = rs.Neural(model, users)
    model.gradient_checkpointing_enable()
    kept = rs.Neural(model, users)
    W = nearby(plain)
    assert apart(kept.grad(W), plain.grad(W)) < TOLERANCE
    seeds = np.arange(3, dtype=np.uint64) + 7
    assert apart(kept.grad(W, seeds), plain.grad(W, seeds)) < TOLERANCE
    assert apart(plain.grad(W, seeds), plain.grad(W)) > 0.01  # dropout is on


def test_adapters_are_trained_alone_and_come_back_as_adapters(tmp_path: Path) -> None:
    import peft

    model = adapted(gpt2())
    frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    run = rs.solve(rs.Neural(model, equally_padded(texts())), rs.fedavg(0.5), rounds=2)
    module: Any = run.module()
    assert all(torch.equal(p, frozen[name]) for name, p in module.named_parameters() if name in frozen)
    assert any(bool(p.any()) for name, p in module.named_parameters() if "lora_B" in name)
    module.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(gpt2(), tmp_path / "adapter").eval()
    given = torch.tensor([[3, 5, 7]])
    assert torch.allclose(again(given).logits, module.eval()(given).logits, rtol=0, atol=1e-5)
    merged = copy.deepcopy(module).merge_and_unload().eval()
    assert torch.allclose(merged(given).logits, module(given).logits, rtol=0, atol=1e-5)


def test_adapters_over_flower_are_those_of_one_process() -> None:
    pytest.importorskip("flwr")
    from engines.fake_grid import KEYS, PROMPT, FakeGrid
    from resolvent.engines.flower.engine import FlowerEngine
    from resolvent.engines.flower.facts import gather
    from resolvent.engines.flower.grid import Post
    from resolvent.engines.flower.node import Node

    users, scheme = equally_padded(texts()), rs.fedavg(0.5, local=rs.GradientSteps(2, batch=2))
    expected = rs.solve(rs.Neural(adapted(gpt2()), users, lora="b"), scheme, rounds=2, seed=2)
    post = Post(FakeGrid([Node(rs.Neural(adapted(gpt2()), [own], lora="b")) for own in users]), KEYS)
    engine = FlowerEngine(post, gather(post, "run", 3, weights="users"), scheme.local, "run", rule=PROMPT)
    run = rs.solve(None, scheme, rounds=2, seed=2, engine=engine)
    torch.testing.assert_close(run.model, expected.model, rtol=1e-4, atol=1e-6)


BATCH = equally_padded(texts((3,)))[0]
LONG = [*texts((3,)), [torch.ones(5, dtype=torch.int64), torch.ones(30, dtype=torch.int64)]]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: rs.Neural(gpt2(), [BATCH | {"input_idz": BATCH["labels"]}]),
            "'input_idz', but GPT2LMHeadModel.forward",
        ),
        (lambda: rs.Neural(adapted(gpt2()), [BATCH | {"idz": BATCH["labels"]}]), "'idz', but GPT2LMHeadModel.forward"),
        (
            lambda: rs.Neural(gpt2(), [BATCH | {"labels": BATCH["labels"][:, :-1]}]),
            "the model cannot take rows of input",
        ),
        (lambda: rs.Neural(gpt2(), [BATCH | {"labels": BATCH["labels"][:-1]}]), "as many rows of each"),
        (
            lambda: rs.Neural(gpt2(), [BATCH | {"labels": BATCH["labels"].unsqueeze(-1)}]),
            r"labels is of shape \(\d+, 1\) per row, .* but the model gives outputs for labels of shape \(\d+,\)",
        ),
        (lambda: rs.Neural(gpt2(), [{"labels": BATCH["labels"]}]), "the model cannot take rows of labels"),
        (
            lambda: rs.Neural(gpt2(), [BATCH, BATCH | {"labels": BATCH["labels"] + VOCABULARY}]),
            "outputs, so labels from",
        ),
        (lambda: rs.Neural(gpt2(), [BATCH, BATCH | {"input_ids": BATCH["input_ids"] + 99}]), r"users\[1\]'s input_ids"),
        (
            lambda: rs.Neural(gpt2(), [BATCH], weights="token"),
            "'token', but 'rows', 'users' or 'tokens', or one number",
        ),
        (lambda: rs.Neural(torch.compile(gpt2()), [BATCH]), "model is compiled by torch.compile, .* the module itself"),  # type: ignore[arg-type]
        (lambda: rs.Neural(nn.DataParallel(gpt2()), [BATCH]), "model is a DataParallel, .* pass model.module"),
        (lambda: rs.Neural(adapted(adapted(gpt2())), [BATCH]), "a PeftModelForCausalLM of another one, .*add_adapter"),
        (lambda: rs.Neural(gpt2().half(), [BATCH]), "model is of float16 numbers, but pass dtype=torch.float32"),
        (
            lambda: rs.Neural(gpt2(), [BATCH | {"labels": BATCH["labels"] + 99}]),
            r"users\[0\]'s labels is partly \d+, but",
        ),
        (
            lambda: rs.Neural(gpt2(), [BATCH | {"labels": BATCH["labels"][:, :-1]}]),
            r"labels \(\d+,\) of torch.int64, those of users\[0\]: Expected input",
        ),
        (
            lambda: rs.Neural(gpt2(), [DataLoader(own, 2, collate_fn=padded) for own in LONG]),  # type: ignore[arg-type]
            r"users\[1\]'s input_ids is of 30 tokens per row, but the model takes 16 at most",
        ),
        (
            lambda: rs.Neural(torch.jit.script(nn.Linear(2, 2)), [({"input": torch.ones(2, 2)}, torch.tensor([0, 1]))]),
            "compiled by torch.jit",
        ),
        (lambda: rs.Neural(gpt2().bfloat16(), [BATCH]), "model is of bfloat16 numbers, but pass dtype=torch.float32"),
    ],
)
def test_bad_input(make: Any, sentence: str) -> None:
    with pytest.raises(rs.InputError, match=sentence):
        make()
