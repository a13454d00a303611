"""Transformers: published parameter counts, boundaries, masks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from repro.errors import UserError
from repro.models import transformer, transformer_lm
from repro.models.transformer import sinusoidal_positions

PAIR: dict[str, Any] = {"num_layers": 2, "d_ff": 24, "num_heads": 2, "vocab_size": 19, "d_model": 12, "d_head": 4}
LM: dict[str, Any] = {"num_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 4, "vocab_size": 19}
SOURCE = torch.tensor([[5, 6, 7, 8, 9], [3, 4, 1, 0, 0], [0, 0, 0, 0, 0]])  # 0 is padding; the last row is nothing else
TARGET = torch.tensor([[2, 7, 8, 4], [2, 9, 0, 0], [2, 3, 5, 0]])

Factories = list[Callable[[], nn.Module]]
BOTH = pytest.mark.parametrize(
    ("build", "options", "inputs"),
    [(transformer, PAIR, (SOURCE, TARGET)), (transformer_lm, LM, TARGET)],
    ids=["encoder-decoder", "decoder-only"],
)
SPLIT = pytest.mark.parametrize("split_sublayers", [False, True], ids=["whole", "split"])


def sequential(factories: Factories, device: str = "cpu") -> nn.Sequential:
    with torch.device(device):
        return nn.Sequential(*(make() for make in factories))


def count(factories: Factories) -> int:
    return sum(parameter.numel() for parameter in sequential(factories, "meta").parameters())


# Table 1 of the GPipe paper: one digit more or less in print than the formula has.
@pytest.mark.parametrize(
    ("num_layers", "printed", "unit", "digits"),
    [(3, "282.2", 1e6, 1), (13, "785.8", 1e6, 1), (103, "5.3", 1e9, 1), (415, "21.0", 1e9, 1), (1663, "83.9", 1e9, 1)],
)
def test_transformer_l_counts(num_layers: int, printed: str, unit: float, digits: int) -> None:
    d, f, vocabulary = 2048, 8192, 32000
    formula = num_layers * (4 * d**2 + 4 * d + 2 * d * f + f + d + 4 * d) + 2 * vocabulary * d + vocabulary
    factories = transformer_lm(num_layers=num_layers)
    assert len(factories) == num_layers + 2
    if num_layers > 200:  # one middle layer stands for all: they come from equal factories
        assert all(repr(make) == repr(factories[1]) for make in factories[1:-1])
        counted = count([factories[0], factories[-1]]) + num_layers * count([factories[1]])
    else:
        counted = count(factories)
    assert counted == formula
    assert f"{counted / unit:.{digits}f}" == printed


@pytest.mark.parametrize(
    ("num_layers", "d_ff", "num_heads", "published", "tolerance"),
    [
        (6, 8192, 16, 408e6, 0.01),
        (12, 16384, 32, 1.3e9, 0.05),  # the text rounds 1.24B up; sections 5.1 of the paper, two tables
        (24, 8192, 16, 1.3e9, 0.05),
        (32, 16384, 32, 3.084e9, 0.01),
        (64, 16384, 32, 6.04e9, 0.01),
    ],
)
def test_encoder_decoder_counts(num_layers: int, d_ff: int, num_heads: int, published: float, tolerance: float) -> None:
    factories = transformer(num_layers=num_layers, d_ff=d_ff, num_heads=num_heads)
    assert len(factories) == 2 * num_layers + 2
    assert count(factories) == pytest.approx(published, rel=tolerance)


@BOTH
@SPLIT
def test_every_boundary_is_flat_and_every_parameter_learns(
    build: Any, options: dict[str, Any], inputs: Any, split_sublayers: bool
) -> None:
    torch.manual_seed(0)
    model = sequential(build(**options, split_sublayers=split_sublayers)).double()
    value = inputs
    for layer in model[:-1]:
        value = layer(value)
        if build is transformer:
            assert [item.dtype for item in value] == [torch.float64, torch.bool, torch.float64]
            assert [tuple(item.shape) for item in value] == [(3, 5, 12), (3, 5), (3, 4, 12)]
        else:
            assert value.dtype == torch.float64 and value.shape == (3, 4, 16)
    logits = model[-1](value)
    assert logits.shape == (3, 4, 19) and logits.dtype == torch.float64
    logits.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        # A bias of the keys shifts all scores of a query alike, which softmax does not see.
        assert parameter.grad.any() or name.endswith("key.bias"), name


@BOTH
def test_split_sublayers_is_the_same_function(build: Any, options: dict[str, Any], inputs: Any) -> None:
    whole = sequential(build(**options, dropout=0.0)).double()
    split = sequential(build(**options, dropout=0.0, split_sublayers=True)).double()
    assert len(split) == (2 + 5 * 2 if build is transformer else 2 + 2 * 2)
    with torch.no_grad():
        for mine, theirs in zip(whole.parameters(), split.parameters(), strict=True):
            theirs.copy_(mine)
    torch.testing.assert_close(whole(inputs), split(inputs), rtol=0, atol=1e-12)


@BOTH
@SPLIT
def test_gradients_are_the_same_when_layers_are_computed_again(
    build: Any, options: dict[str, Any], inputs: Any, split_sublayers: bool
) -> None:
    model = sequential(build(**options, split_sublayers=split_sublayers)).double()
    gradients = []
    for recompute in (False, True):
        model.zero_grad()
        torch.manual_seed(3)
        value = inputs
        for layer in model:
            value = checkpoint(layer, value, use_reentrant=False) if recompute else layer(value)
        value.square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])  # type: ignore[union-attr]
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again, rtol=0, atol=1e-12)


@BOTH
def test_no_layer_writes_to_what_it_reads(build: Any, options: dict[str, Any], inputs: Any) -> None:
    value = inputs
    for layer in sequential(build(**options)):
        before = [item.clone() for item in value] if isinstance(value, tuple) else [value.clone()]
        result = layer(value)
        for item, copy in zip(value if isinstance(value, tuple) else [value], before, strict=True):
            assert torch.equal(item, copy)
        value = result


@BOTH
@pytest.mark.parametrize("position", [0, 1, 2, 3])
def test_a_position_sees_no_later_target_token(build: Any, options: dict[str, Any], inputs: Any, position: int) -> None:
    model = sequential(build(**options)).double().eval()
    changed = TARGET.clone()
    changed[:, position:] = 11
    before, after = model(inputs), model((SOURCE, changed) if build is transformer else changed)
    assert torch.equal(before[:, :position], after[:, :position])
    assert (before[:, position:] != after[:, position:]).any(dim=2).all()


def test_source_padding_is_ignored() -> None:
    model = sequential(transformer(**PAIR)).double().eval()
    expected = model((SOURCE[:2], TARGET[:2]))
    # More padding behind.
    longer = torch.cat([SOURCE[:2], torch.zeros(2, 3, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(model((longer, TARGET[:2])), expected, rtol=0, atol=1e-12)
    # The row of its own, without padding.
    torch.testing.assert_close(model((SOURCE[1:2, :3], TARGET[1:2])), expected[1:2], rtol=0, atol=1e-12)
    # Other contents in the padded places, behind the embedding.
    source, mask, target = model[0]((SOURCE[:2], TARGET[:2]))
    assert mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    noisy = torch.where(mask[:, :, None], source, torch.randn_like(source))
    torch.testing.assert_close(model[1:]((noisy, mask, target)), expected, rtol=0, atol=1e-12)
    # And real tokens are not ignored.
    other = SOURCE[:2].clone()
    other[:, 1] = 12
    assert (model((other, TARGET[:2])) != expected).any(dim=2).all()


def test_pad_id_is_an_option() -> None:
    model = sequential(transformer(**PAIR, pad_id=17)).eval()
    _, mask, _ = model[0]((torch.tensor([[17, 0, 17]]), TARGET[:1]))
    assert mask.tolist() == [[False, True, False]]


def test_a_row_of_padding_alone_stays_finite() -> None:
    model = sequential(transformer(**PAIR))
    source = torch.zeros(2, 4, dtype=torch.int64)
    _, mask, _ = model[0]((source, TARGET[:2]))
    assert mask.all()  # not every attention kernel survives a row that may read nothing
    logits = model((source, TARGET[:2]))
    logits.square().sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(("num_encoder", "num_decoder"), [(3, 1), (1, 2)])
def test_encoder_and_decoder_may_differ_in_depth(num_encoder: int, num_decoder: int) -> None:
    factories = transformer(**(PAIR | {"num_layers": num_encoder}), num_decoder_layers=num_decoder)
    assert len(factories) == num_encoder + num_decoder + 2
    assert sequential(factories)((SOURCE, TARGET)).shape == (3, 4, 19)


@BOTH
def test_autocast_in_bfloat16(build: Any, options: dict[str, Any], inputs: Any) -> None:
    model = sequential(build(**options))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(inputs)
    assert logits.dtype == torch.bfloat16
    logits.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@BOTH
def test_forward_on_the_meta_device(build: Any, options: dict[str, Any], inputs: Any) -> None:
    """How costs are counted without a device."""
    on_meta = tuple(i.to("meta") for i in inputs) if isinstance(inputs, tuple) else inputs.to("meta")
    logits = sequential(build(**options), "meta")(on_meta)
    assert logits.is_meta and logits.shape == (3, 4, 19)


@BOTH
@SPLIT
def test_factories_pickle_build_anywhere_and_draw_from_the_default_generator(
    build: Any, options: dict[str, Any], inputs: Any, split_sublayers: bool
) -> None:
    factories = pickle.loads(pickle.dumps(build(**options, split_sublayers=split_sublayers)))
    assert all(tensor.is_meta for tensor in sequential(factories, "meta").state_dict().values())
    for make in factories:
        states = []
        for _ in range(2):
            torch.manual_seed(7)
            states.append(make().state_dict())
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize(("num_encoder", "num_decoder", "split"), [(2, 2, False), (6, 3, True)])
def test_scaled_feed_forward_starts_smaller_and_all_else_alike(num_encoder: int, num_decoder: int, split: bool) -> None:
    """What a feed-forward sub-layer adds starts divided by the number of layers; the count of parameters stays."""
    options = PAIR | {"num_layers": num_encoder, "num_decoder_layers": num_decoder, "split_sublayers": split}
    scale = (num_encoder + num_decoder) ** -0.5
    changed = 0
    for plain, scaled in zip(transformer(**options), transformer(**options, scale_ffn_init=True), strict=True):
        states = []
        for make in (plain, scaled):  # each layer from its own seed, as the engine makes them
            torch.manual_seed(11)
            states.append(make().state_dict())
        assert states[0].keys() == states[1].keys()
        for name, before in states[0].items():
            is_matrix = "feed_forward" in name and name.endswith(("expand.weight", "contract.weight"))
            torch.testing.assert_close(states[1][name], before * (scale if is_matrix else 1.0))
            changed += is_matrix
    assert changed == 2 * (num_encoder + num_decoder)


@SPLIT
def test_clipped_logits(split_sublayers: bool) -> None:
    torch.manual_seed(0)
    options = PAIR | {"dropout": 0.0, "split_sublayers": split_sublayers}
    free, clipped = (sequential(transformer(**options, logit_clip=limit)) for limit in (None, 0.5))
    clipped.load_state_dict(free.state_dict())
    logits, bounded = free((SOURCE, TARGET)), clipped((SOURCE, TARGET))
    beyond = logits.abs() > 0.5
    assert beyond.any() and not beyond.all()
    torch.testing.assert_close(bounded, logits.clamp(-0.5, 0.5), rtol=0, atol=0)
    bounded[beyond].sum().backward()
    assert not any(parameter.grad is not None and parameter.grad.any() for parameter in clipped.parameters())


def test_positions_are_sines_and_cosines_in_the_dtype_of_the_states() -> None:
    positions = sinusoidal_positions(torch.empty(1, 4, 4, dtype=torch.float64))
    angles = torch.tensor([[p / 10000 ** (c / 4) for c in (0, 2)] for p in range(4)], dtype=torch.float64)
    torch.testing.assert_close(positions, torch.cat([angles.sin(), angles.cos()], dim=1), rtol=0, atol=1e-12)
    torch.testing.assert_close(sinusoidal_positions(torch.empty(1, 2, 4, dtype=torch.float64), 2), positions[2:])
    coarse = sinusoidal_positions(torch.empty(1, 1000, 4, dtype=torch.bfloat16))
    assert coarse.dtype == torch.bfloat16
    exact = sinusoidal_positions(torch.empty(1, 1000, 4))
    torch.testing.assert_close(coarse.float(), exact, rtol=0, atol=0.005)


def test_dropout_is_on_by_default_and_off_in_evaluation() -> None:
    model: Callable[[Any], Tensor] = sequential(transformer(**PAIR))
    inputs = (SOURCE, TARGET)
    assert not torch.equal(model(inputs), model(inputs))
    evaluated = model.eval()  # type: ignore[attr-defined]
    assert torch.equal(evaluated(inputs), evaluated(inputs))


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (transformer, PAIR | {"num_layers": 0}, "num_layers=0 must be at least 1"),
        (transformer, PAIR | {"num_decoder_layers": 0}, "num_decoder_layers=0 must be at least 1"),
        (transformer, PAIR | {"d_ff": 0}, "d_ff=0 must be at least 1"),
        (transformer, PAIR | {"num_heads": 0}, "num_heads=0 must be at least 1"),
        (transformer, PAIR | {"d_model": 13}, "d_model=13 must be even"),
        (transformer, PAIR | {"pad_id": 19}, "pad_id=19.*0 .. 18"),
        (transformer, PAIR | {"dropout": -0.1}, "dropout=-0.1"),
        (transformer, PAIR | {"logit_clip": 0.0}, "logit_clip=0.0 must be above 0"),
        (transformer_lm, LM | {"num_layers": -1}, "num_layers=-1 must be at least 1"),
        (transformer_lm, LM | {"num_heads": 3}, "d_model=16 is not a multiple of num_heads=3"),
        (transformer_lm, LM | {"num_heads": 0}, "num_heads=0"),
        (transformer_lm, LM | {"vocab_size": 0}, "vocab_size=0"),
    ],
)
def test_wrong_options_are_one_clear_error(build: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(**options)
