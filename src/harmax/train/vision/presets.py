"""Classifiers by name; every field of them can be set."""

from dataclasses import replace

from harmax.train.vision.settings import GENERATED, VisionSpec

TINY = VisionSpec(
    dataset=GENERATED, model="tiny", small_stem=True, flip=False, padding=1, dtype="float32", compile=False, workers=0
)

VISION_PRESETS: dict[str, VisionSpec] = {
    "imagenet": VisionSpec(auto_augment="imagenet"),
    # The learning rate of each head comes from a sweep (--lr).
    "cifar10": VisionSpec(
        dataset="cifar10",
        model="resnet18",
        small_stem=True,
        epochs=40,
        batch=512,
        micro_batch=512,
        lr=0.4,
        schedule="triangle",
        warmup=8,
        nesterov=True,
        weight_decay=5e-4,
        decay_norms=False,
        log_every=97,
        evaluate_every=5,
    ),
    "smoke": replace(
        TINY, epochs=4, batch=32, micro_batch=16, lr=0.2, schedule="cosine", warmup=0.5, log_every=8, checkpoint_every=8
    ),
}

DESCRIPTIONS: dict[str, str] = {
    "imagenet": "ResNet-50 with the paper's schedule, for pictures in class folders (--data). Needs a GPU.",
    "cifar10": "ResNet-18 on CIFAR-10, 40 epochs: about 94 % test accuracy, in minutes on a GPU.",
    "smoke": "A tiny ResNet on generated images, to see that everything works. Takes seconds on a CPU.",
}
