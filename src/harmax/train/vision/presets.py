"""The classifiers one can ask for by name; every field can be given anew."""

from harmax.train.vision.spec import GENERATED, VisionSpec

VISION_PRESETS: dict[str, VisionSpec] = {
    # The paper's appendix: ResNet-50 as published, both heads (--head) with one schedule.
    "imagenet": VisionSpec(auto_augment="imagenet"),
    # A baseline of 94 % or better, in minutes on a GPU; each head's own --lr comes from a sweep.
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
    # Does it run? A tiny ResNet on generated images, on a CPU, in seconds.
    "smoke": VisionSpec(
        dataset=GENERATED,
        model="tiny",
        small_stem=True,
        flip=False,
        padding=1,
        epochs=4,
        batch=32,
        micro_batch=16,
        lr=0.2,
        schedule="cosine",
        warmup=0.5,
        dtype="float32",
        compile=False,
        workers=0,
        log_every=8,
        checkpoint_every=8,
    ),
}
