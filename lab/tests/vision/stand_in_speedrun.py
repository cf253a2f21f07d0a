"""A small script with the interface of the public speedrun, for tests: it reads itself, asks for CUDA, and prints."""

import sys

import torch
import torch.nn.functional as F
import torchvision.transforms as T
from torch import nn

with open(sys.argv[0]) as file:
    TEXT = file.read()
PRINTED: list[str] = []
EPOCHS, BATCH = 3, 60


class CifarLoader:
    def __init__(self, path, train=True):
        stored = torch.load(f"{path}/{'train' if train else 'test'}.pt", map_location=torch.device("cuda"))
        self.images, self.labels = (stored["images"].half() / 255).permute(0, 3, 1, 2), stored["labels"]
        self.normalize = T.Normalize(torch.tensor((0.5, 0.5, 0.5)), torch.tensor((0.2, 0.2, 0.2)))


class CifarNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.layer = nn.Conv2d(3, 8, 4, stride=4)
        self.head = nn.Linear(8 * 8 * 8, 10, bias=False)
        self.layer.half()
        self.head.half()

    def reset(self):
        for module in self.modules():
            if type(module) in (nn.Conv2d, nn.BatchNorm2d, nn.Linear):
                module.reset_parameters()
        self.head.weight.data /= self.head.weight.data.std()

    def forward(self, x):
        hidden = F.gelu(F.conv2d(self.norm(x), self.layer.weight, self.layer.bias, stride=4)).flatten(1)
        return self.head(hidden) / hidden.shape[1]


def print_training_details(variables, is_final_entry):
    PRINTED.append(str(variables["epoch"]))


def accuracy(model, loader, flip):
    model.eval()
    with torch.no_grad():
        images = loader.normalize(loader.images)
        found = model(images) + (model(images.flip(-1)) if flip else 0)
    return (found.argmax(1) == loader.labels).float().mean().item()


def main(run, model):
    train, test = CifarLoader("cifar10", train=True), CifarLoader("cifar10", train=False)
    images = train.normalize(train.images)
    others = [parameter for name, parameter in model.named_parameters() if name != "head.weight"]
    groups = [dict(params=others, lr=0.01), dict(params=[model.head.weight], lr=0.5, weight_decay=0.01)]
    optimizer = torch.optim.SGD(groups, momentum=0.8, nesterov=True, fused=True)
    start, end, time_seconds = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True), 0.0
    model.reset()
    for epoch in range(EPOCHS):  # noqa: B007  (what prints looks at it)
        start.record()
        model.train()
        for chosen in torch.randperm(len(images)).split(BATCH):
            outputs = model(images[chosen])
            F.cross_entropy(outputs, train.labels[chosen], label_smoothing=0.2, reduction="sum").backward()
            optimizer.step()
            model.zero_grad(set_to_none=True)
        end.record()
        torch.cuda.synchronize()
        time_seconds += 1e-3 * start.elapsed_time(end)
        val_acc = accuracy(model, test, False)
        print_training_details(locals(), is_final_entry=False)
    tta_val_acc = accuracy(model, test, True)
    epoch = "eval"
    print_training_details(locals(), is_final_entry=True)
    return tta_val_acc


if __name__ == "__main__":
    raise SystemExit("this script is for tests")
