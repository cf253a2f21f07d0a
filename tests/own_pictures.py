"""Small folders of pictures, as a person might have them."""

from pathlib import Path

import numpy as np
from PIL import Image

COLORS = {"blue": (70, 80, 190), "green": (70, 180, 80), "red": (190, 70, 80)}
NETWORK = '''"""A network that only looks at colors."""

import torch


class Colors(torch.nn.Module):
    image_size, mean, std = 16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)

    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(3, 8, bias=False)
        torch.nn.init.orthogonal_(self.mix.weight, generator=torch.Generator().manual_seed(0))

    def forward(self, images):
        return self.mix(images.mean((2, 3)))


def wrong():
    return torch.nn.Conv2d(3, 4, 3)


def nothing():
    return None
'''


def write_picture(path: Path, color: tuple[int, int, int], seed: int) -> None:
    numbers = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.clip(numbers.normal(color, 40, size=(20, 26, 3)), 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path)


def write_folder(root: Path | str, form: str = "{name}/{index}.png", count: int = 10) -> Path:
    """Write pictures of three classes; `form` says what the files are called."""
    root = Path(root)
    for place, (name, color) in enumerate(COLORS.items()):
        for index in range(count):
            write_picture(root / form.format(name=name, index=index), color, 1000 * place + index)
    return root


def write_network(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nets.py"
    path.write_text(NETWORK)
    return path
