"""Models have the published sizes, and many of them at once equal each by itself."""

import pytest
import torch
from torch import nn

from wellorder._datasets.networks import NETWORKS, Residual, network
from wellorder.federated._batched_models import Convolution, Means, Options, stack
from wellorder.federated._parameters import layout_of
from wellorder.federated._simulate import precision_of


def count(name, channels=3, size=32, classes=10):
    return sum(p.numel() for p in network(name, channels=channels, size=size, classes=classes).parameters())


def test_parameter_counts_are_the_published_ones():
    assert count("cnn") == 797_962
    assert count("resnet10") == 4_897_482
    assert count("lenet") == 62_006
    assert count("logistic", channels=1, size=28) == 7_850


def test_first_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    before = torch.rand(1)
    torch.manual_seed(1)
    first, again, other = (network("lenet", channels=1, size=28, classes=10, seed=s) for s in (3, 3, 4))
    assert torch.equal(torch.rand(1), before)
    assert torch.equal(first[0].weight, again[0].weight)
    assert not torch.equal(first[0].weight, other[0].weight)


def test_unknown_names_and_tiny_images_are_refused():
    with pytest.raises(ValueError, match=r"name='vgg': pass one of logistic, lenet"):
        network("vgg", channels=3, size=32, classes=10)
    with pytest.raises(ValueError, match="too small for cnn"):
        network("cnn", channels=3, size=8, classes=10)


def odd_one():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(6, 5, 4, padding=1), nn.GroupNorm(5, 5),
        nn.MaxPool2d(3, stride=1), nn.ReLU(),
        Residual(nn.Sequential(nn.Conv2d(5, 7, 3, 2, 1), nn.ReLU()), nn.Sequential(nn.Conv2d(5, 7, 1, 2))),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(7, 4, bias=False),
    )  # fmt: skip


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", [*NETWORKS, "odd"])
def test_stacked_lanes_equal_each_model_by_itself(name, channels_last):
    size = {"resnet10": 9, "resnet10_groupnorm": 9, "odd": 15}.get(name, 20)
    lanes, batch = 3, 2
    torch.manual_seed(0)
    models = [
        (odd_one() if name == "odd" else network(name, channels=3, size=size, classes=4, seed=i)).double()
        for i in range(lanes)
    ]
    layout = layout_of(models[0], channels_last=channels_last)
    flat = torch.stack([layout.flat(dict(m.named_parameters())) for m in models]).requires_grad_()
    x = torch.randn(lanes, batch, 3, size, size, dtype=torch.float64)
    x[:, 0, :, :4] = 0.5  # ties in the pools
    targets = torch.randn(lanes, batch, 4, dtype=torch.float64)
    forward = stack(models[0])
    out = forward(layout.views(flat), x.permute(0, 1, 3, 4, 2).contiguous())
    (grad,) = torch.autograd.grad((out * targets).sum(), flat)
    for lane, model in enumerate(models):
        alone = model(x[lane])
        torch.testing.assert_close(out[lane], alone, rtol=1e-12, atol=1e-13)
        grads = torch.autograd.grad((alone * targets[lane]).sum(), list(model.parameters()))
        own = layout.flat(dict(zip(layout.names, grads, strict=True)))
        torch.testing.assert_close(grad[lane], own, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("way", "kernel", "stride", "padding", "size"),
    [
        ("grouped", 3, 1, 1, 9),
        ("grouped", 5, 1, 0, 9),
        ("grouped", 3, 1, 1, 16),  # large images' gradients go another way
        ("patches", 3, 1, 1, 9),
        ("patches", 5, 1, 0, 9),
        ("patches", 3, 2, 1, 9),
        ("patches", 1, 2, 0, 9),
    ],
)
def test_a_convolution_is_the_same_in_every_way(way, kernel, stride, padding, size):
    lanes, batch, out, inside = 3, 2, 5, 4
    torch.manual_seed(0)
    x = torch.randn(lanes, batch, size, size, inside, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(lanes, out, kernel, kernel, inside, dtype=torch.float64, requires_grad=True)
    y = Convolution.apply(x, weight, Means(stride, padding, way))
    target = torch.randn_like(y)
    dx, dw = torch.autograd.grad((y * target).sum(), (x, weight))
    for lane in range(lanes):
        images, kernels = x[lane].permute(0, 3, 1, 2), weight[lane].permute(0, 3, 1, 2)
        alone = torch.nn.functional.conv2d(images, kernels, None, stride, padding).permute(0, 2, 3, 1)
        own = torch.autograd.grad((alone * target[lane]).sum(), (x, weight))
        torch.testing.assert_close(y[lane], alone, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(dx[lane], own[0][lane], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(dw[lane], own[1][lane], rtol=1e-12, atol=1e-12)


def test_the_way_of_a_convolution_goes_by_rule():
    images = torch.zeros(1, 1, 4, 4, 64)
    assert Options().way(images, 64, 1) == "patches", "no kernels of ours on a CPU"
    if torch.cuda.is_available():
        on_device = images.cuda()
        assert Options().way(on_device, 64, 1) == "kernels", "float32 in full"
        with precision_of("tf32"):
            found = [Options().way(on_device, 64, stride) for stride in (1, 2)]
            assert found == ["grouped", "patches"]
            assert Options().way(on_device[..., :3], 64, 1) == "patches", "few channels"
        assert Options(half=True).way(on_device.bfloat16(), 64, 2) == "kernels"


def test_half_precision_is_close():
    model = network("cnn", channels=3, size=20, classes=4)
    layout = layout_of(model)
    flat = layout.flat(dict(model.named_parameters())).float()[None]
    x = torch.randn(1, 2, 20, 20, 3)
    exact, half = (stack(model, half=half)(layout.views(flat), x) for half in (False, True))
    torch.testing.assert_close(half.float(), exact, rtol=0.1, atol=0.02)


def test_unknown_layers_are_left_to_vmap():
    assert stack(nn.Sequential(nn.Linear(3, 3), nn.Tanh())) is None
    assert stack(nn.Sequential(nn.Conv2d(4, 4, 3, groups=2))) is None


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_row_gives_the_parameters_back(channels_last):
    model = network("lenet", channels=1, size=28, classes=10)
    layout = layout_of(model, channels_last=channels_last)
    row = layout.flat(dict(model.named_parameters()))
    for name, array in layout.named(row).items():
        assert (array == dict(model.named_parameters())[name].detach().double().numpy()).all()
    assert layout.width >= layout.dim
    assert row.count_nonzero() <= layout.dim


def test_models_that_cannot_be_averaged_are_refused():
    with pytest.raises(ValueError, match=r"0 is a BatchNorm2d with momentum=None"):
        layout_of(nn.Sequential(nn.BatchNorm2d(4, momentum=None)))
    with pytest.raises(ValueError, match="no parameters"):
        layout_of(nn.ReLU())
