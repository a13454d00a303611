"""AmoebaNet: published parameter counts, boundaries, stems, the operations of a cell."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from repro.errors import UserError
from repro.models import amoebanet
from repro.models.amoebanet import Cell, set_drop_path, softmax_layers
from repro.models.genotypes import AMOEBANET_A, AMOEBANET_B, AMOEBANET_D, CellGenotype
from repro.models.operations import DropPath, FactorizedReduction, batch_norm, group_norm, operation

BATCH_NORM = partial(batch_norm, momentum=0.1)
TINY: dict[str, Any] = {"num_layers": 3, "num_filters": 8, "num_classes": 5}


def build(variant: str, device: str = "cpu", **options: Any) -> nn.Sequential:
    with torch.device(device):
        return nn.Sequential(*(make() for make in amoebanet(variant, **options)))  # type: ignore[arg-type]


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# Table 1 and section 5 of the GPipe paper, which print two to four digits; 1.8B is a coarse rounding.
@pytest.mark.parametrize(
    ("variant", "num_layers", "num_filters", "published", "tolerance"),
    [
        ("D", 18, 208, 82e6, 0.011),
        ("D", 18, 416, 318e6, 0.011),
        ("D", 18, 544, 542e6, 0.011),
        ("D", 36, 544, 1.05e9, 0.011),
        ("D", 72, 512, 1.8e9, 0.025),
        ("B", 18, 512, 557.3e6, 0.0001),  # 557M, of 1000 classes and without the auxiliary head
        ("A", 18, 190, 86.7e6, 0.0006),  # Real et al. 2018: N = 6, F = 190
        ("A", 18, 448, 469e6, 0.002),  # N = 6, F = 448
    ],
)
def test_counts_are_those_published(
    variant: str, num_layers: int, num_filters: int, published: float, tolerance: float
) -> None:
    model = build(variant, "meta", num_layers=num_layers, num_filters=num_filters)
    assert len(model) == num_layers + 6
    assert count(model) == pytest.approx(published, rel=tolerance)


# From an independent counter of the public TPU code's construction: 1001 classes, with and without auxiliary head.
@pytest.mark.parametrize(
    ("variant", "num_filters", "plain", "with_aux_head"),
    [
        ("D", 208, 81.141e6, 81.79e6),
        ("D", 416, 317.548e6, 318.28e6),
        ("B", 512, 557.29e6, None),
        ("A", 190, 86.72e6, None),
        ("A", 448, 468.16e6, None),
    ],
)
def test_counts_are_those_of_the_public_code(
    variant: str, num_filters: int, plain: float, with_aux_head: float | None
) -> None:
    options = {"num_layers": 18, "num_filters": num_filters, "num_classes": 1001}
    assert count(build(variant, "meta", **options)) == pytest.approx(plain, abs=6e3)
    if with_aux_head is not None:
        assert count(build(variant, "meta", aux_head=True, **options)) == pytest.approx(with_aux_head, abs=6e3)


@pytest.mark.parametrize("cell", [g for n in (AMOEBANET_A, AMOEBANET_B, AMOEBANET_D) for g in (n.normal, n.reduction)])
def test_genotypes_read_earlier_states_and_waste_none(cell: CellGenotype) -> None:
    read = set()
    for index, pair in enumerate(cell.pairs):
        for _, source in pair:
            assert source < index + 2
            read.add(source)
    assert read | set(cell.concat) == set(range(len(cell.pairs) + 2))


@pytest.mark.parametrize("variant", ["A", "B", "D"])
@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"stem": "imagenet"}, (2, 3, 65, 47)),  # odd sides, not square
        ({"stem": "small"}, (2, 3, 32, 32)),
        ({"stem": "small", "in_channels": 1}, (2, 1, 28, 28)),
        ({"stem": "small", "in_channels": 1, "aux_head": True, "dropout": 0.5}, (2, 1, 28, 28)),
        ({"stem": "imagenet", "aux_head": True, "num_filters": 12}, (2, 3, 64, 64)),
    ],
)
def test_every_layer_hands_on_a_flat_tuple_and_every_parameter_learns(
    variant: str, options: dict[str, Any], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    model = build(variant, **(TINY | options)).double()
    value: Any = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    outputs = []
    for layer in model:
        outputs.append(value := layer(value))
    for boundary in outputs[:-1]:
        assert isinstance(boundary, tuple)
        assert all(item is None or isinstance(item, Tensor) for item in boundary)
    heads = value if isinstance(value, tuple) else (value,)
    assert len(heads) == (2 if options.get("aux_head") else 1)
    assert all(head.shape == (2, 5) and head.dtype == torch.float64 for head in heads)
    sum(head.square().sum() for head in heads).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.any() or parameter.numel() < 16, name  # a ReLU can silence a narrow layer


def test_the_pair_is_output_and_previous_output() -> None:
    model = build("D", stem="small", in_channels=1, **TINY)
    first = model[0](torch.randn(2, 1, 16, 16))
    assert first[1] is None
    second = model[1](first)
    third = model[2](second)
    assert second[1] is first[0] and third[1] is second[0]


@pytest.mark.parametrize("variant", ["A", "B", "D"])
def test_no_layer_writes_to_what_it_reads(variant: str) -> None:
    """An output is read by two cells: an in-place ReLU on it would change what the second one sees."""
    model = build(variant, stem="small", aux_head=True, **TINY)
    value: Any = (torch.randn(2, 3, 16, 16),)
    for index, layer in enumerate(model):
        before = [None if item is None else item.clone() for item in value]
        result = layer(value if index else value[0])
        for item, copy in zip(value, before, strict=True):
            assert copy is None or torch.equal(item, copy)
        value = result


def test_gradients_are_the_same_when_layers_are_computed_again() -> None:
    model = build("D", stem="small", **TINY).double()
    images = torch.randn(3, 3, 16, 16, dtype=torch.float64, requires_grad=True)
    model(images).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]
    model.zero_grad()
    value: Any = images
    for layer in model:
        value = checkpoint(layer, value, use_reentrant=False)
    value.square().sum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "side", "sides"),
    [
        # stem, (2 stem cells), normal, reduction, normal, reduction, normal
        ({"stem": "imagenet"}, 224, [112, 56, 28, 28, 14, 14, 7, 7]),
        ({"stem": "imagenet"}, 75, [38, 19, 10, 10, 5, 5, 3, 3]),
        ({"stem": "small"}, 32, [32, 32, 16, 16, 8, 8]),
        ({"stem": "small"}, 28, [28, 28, 14, 14, 7, 7]),
        ({"stem": "small", "stem_stride": 2}, 28, [14, 14, 7, 7, 4, 4]),
    ],
)
def test_stems_and_reductions_halve_the_side(options: dict[str, Any], side: int, sides: list[int]) -> None:
    model = build("D", "meta", **TINY, **options)
    value: Any = torch.empty(1, 3, side, side, device="meta")
    seen = []
    for layer in model[:-1]:
        value = layer(value)
        seen.append(value[0].shape[2])
        assert value[0].shape[2] == value[0].shape[3]
    assert seen == sides


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [6, 8])
@pytest.mark.parametrize(
    "name",
    [
        "none",
        "conv_1x1",
        "conv_3x3",
        "conv_1x7_7x1",
        "avg_pool_3x3",
        "max_pool_3x3",
        "separable_7x7",
        "dilated_separable_5x5",
    ],
)
def test_operations_keep_or_halve_the_side(name: Any, channels: int, stride: int) -> None:
    images = torch.randn(2, 6, 9, 12)
    output = operation(name, 6, channels, stride=stride, norm=BATCH_NORM)(images)
    assert output.shape == ((2, channels, 9, 12) if stride == 1 else (2, channels, 5, 6))


def test_pools_are_what_their_names_say() -> None:
    images = torch.arange(16.0).reshape(1, 1, 4, 4)

    def pool(name: Any, stride: int) -> Tensor:
        pooled: Tensor = operation(name, 1, 1, stride=stride, norm=BATCH_NORM)(images)
        return pooled[0, 0]

    assert pool("max_pool_3x3", 1)[0].tolist() == [5, 6, 7, 7]
    assert pool("max_pool_3x3", 2).tolist() == [[5, 7], [13, 15]]
    assert pool("max_pool_2x2", 2).tolist() == [[5, 7], [13, 15]]
    assert pool("avg_pool_3x3", 1)[0].tolist() == [2.5, 3, 4, 4.5]  # the mean of what is there, not of padding
    with pytest.raises(ValueError, match=r"max_pool_2x2.*stride 1"):
        pool("max_pool_2x2", 1)


def test_factorized_reduction_reads_both_diagonals() -> None:
    reduction = FactorizedReduction(1, 2, norm=BATCH_NORM)
    reduction.eval()
    nn.init.ones_(reduction.even.weight)
    nn.init.ones_(reduction.odd.weight)
    images = torch.arange(9.0).reshape(1, 1, 3, 3)
    even, odd = reduction(images)[0] * (1 + 1e-3) ** 0.5
    torch.testing.assert_close(even, torch.tensor([[0.0, 2.0], [6.0, 8.0]]))
    torch.testing.assert_close(odd, torch.tensor([[4.0, 0.0], [0.0, 0.0]]))


def test_batch_norm_options() -> None:
    norms = [m for m in build("D", "meta", bn_momentum=0.0003, **TINY).modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms and all(norm.eps == 1e-3 and norm.momentum == 0.0003 for norm in norms)


def test_dropout_comes_before_the_classifier() -> None:
    classifier = amoebanet("D", stem="small", dropout=0.5, **TINY)[-1]()
    boundary = (torch.ones(64, 4 * 4 * TINY["num_filters"], 2, 2), None)
    assert classifier(boundary).std(dim=0).min() > 0
    assert classifier.eval()(boundary).std(dim=0).max() < 1e-5


@pytest.mark.parametrize(("stem", "cells"), [("small", 5), ("imagenet", 7)])
def test_drop_path_grows_over_the_cells_and_over_training(stem: str, cells: int) -> None:
    model = build("D", "meta", drop_path=0.3, stem=stem, **TINY)

    def probabilities(progress: float) -> list[float]:
        set_drop_path(model, progress)
        return [layer.drop_path.p for layer in model if isinstance(layer, Cell)]

    assert [layer.drop_path.p for layer in model if isinstance(layer, Cell)] == [0.0] * cells
    assert probabilities(0.5) == pytest.approx([0.15 * (cell + 1) / cells for cell in range(cells)])
    assert probabilities(1.0)[-1] == pytest.approx(0.3)
    assert probabilities(1.5) == probabilities(1.0)


def test_drop_path_drops_whole_images_and_keeps_the_mean() -> None:
    drop, images = DropPath(0.3), torch.ones(4000, 2, 2, 1)
    assert drop(images) is images  # nobody has told it of any progress
    drop.p = 0.3
    torch.manual_seed(0)
    dropped = drop(images).flatten(1)
    assert torch.equal(dropped, dropped[:, :1].expand(-1, 4))
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert dropped.mean().item() == pytest.approx(1, abs=0.04)
    torch.manual_seed(1)
    assert not torch.equal(drop(images).flatten(1), dropped)  # as on another micro-batch
    torch.manual_seed(0)
    assert torch.equal(drop(images).flatten(1), dropped)  # as when it is computed again
    drop.eval()
    assert drop(images) is images


def test_drop_path_drops_every_operation_but_none() -> None:
    """The normal cell of B: state 3 is "none" of state 1 and a convolution; 2, 4 and 6 have no "none" but of 2."""
    cell = Cell(
        AMOEBANET_B.normal,
        in_channels=8,
        previous_channels=8,
        channels=8,
        stride=1,
        reduce_previous=False,
        drop_path=0.5,
        norm=BATCH_NORM,
    )
    output, previous = torch.randn(2, 8, 5, 5), torch.randn(2, 8, 5, 5)
    cell.drop_path.p = 1.0
    made, handed_on = cell((output, previous))
    assert made is not None
    states = made.split(8, dim=1)
    torch.testing.assert_close(states[0], cell.project(output))
    assert torch.equal(states[1], previous)
    assert not states[2].any() and not states[3].any()
    assert handed_on is output


@pytest.mark.parametrize(
    ("channels", "groups"),
    [(2, 1), (4, 1), (6, 1), (8, 2), (16, 4), (51, 3), (128, 32), (190, 19), (307, 1), (512, 32), (2048, 32)],
)
def test_group_norm_has_groups_that_divide(channels: int, groups: int) -> None:
    norm = group_norm(channels)
    assert (norm.num_groups, norm.num_channels, norm.eps) == (groups, channels, 1e-3)


@pytest.mark.parametrize("options", [{"stem": "small"}, {"stem": "imagenet", "aux_head": True}])
def test_group_norm_has_as_many_parameters_and_no_statistics(options: dict[str, Any]) -> None:
    batch, group = (
        build("A", "meta", norm=norm, num_layers=6, num_filters=20, **options) for norm in ("batch", "group")
    )
    assert {n: p.shape for n, p in group.named_parameters()} == {n: p.shape for n, p in batch.named_parameters()}
    assert not list(group.buffers()) and list(batch.buffers())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in group.modules())


def test_with_group_norm_no_image_knows_of_the_others() -> None:
    model = build("D", stem="small", norm="group", aux_head=True, **TINY).double()
    images = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    alone = [model(image[None]) for image in images]
    for together, single in zip(model(images), zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(together, torch.cat(single), rtol=0, atol=1e-12)


@pytest.mark.parametrize("aux_head", [False, True])
def test_softmax_layers_are_those_that_make_the_logits(aux_head: bool) -> None:
    model = build("A", "meta", stem="small", aux_head=aux_head, **TINY)
    found = [model.get_submodule(name) for name in softmax_layers(model)]
    assert found == [m for m in model.modules() if isinstance(m, nn.Linear)] and len(found) == 1 + aux_head
    assert all(isinstance(layer, nn.Linear) and layer.out_features == 5 for layer in found)


def test_factories_pickle_build_anywhere_and_draw_from_the_default_generator() -> None:
    factories = amoebanet("D", aux_head=True, **TINY)
    for make in pickle.loads(pickle.dumps(factories)):
        with torch.device("meta"):
            skeleton = make()
        assert all(tensor.is_meta for tensor in skeleton.state_dict().values())
    for make in factories:
        states = []
        for _ in range(2):
            torch.manual_seed(7)
            states.append(make().state_dict())
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_autocast_in_bfloat16() -> None:
    model = build("B", stem="small", **TINY)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(torch.randn(2, 3, 16, 16))
    logits.float().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "C"}, "unknown AmoebaNet variant 'C'; choose one of A, B, D"),
        ({"num_layers": 4}, "num_layers=4.*multiple of 3"),
        ({"num_layers": 0}, "num_layers=0.*multiple of 3"),
        ({"num_filters": 3}, "num_filters=3 must be at least 4"),
        ({"num_classes": 0}, "num_classes=0"),
        ({"in_channels": 0}, "in_channels=0"),
        ({"stem_stride": 0}, "stem_stride=0"),
        ({"stem": "cifar"}, "unknown stem 'cifar'; choose one of imagenet, small"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"drop_path": 1.0}, "drop_path=1.0 must be at least 0 and less than 1"),
        ({"norm": "layer"}, "unknown norm 'layer'; choose one of batch, group"),
    ],
)
def test_wrong_options_are_one_clear_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        amoebanet(**({"variant": "D"} | TINY | options))
