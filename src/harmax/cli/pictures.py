"""`harmax vision pictures`: a classifier for a person's own folder of pictures."""

import sys
from typing import Any

from harmax.analysis.statistics import share_interval
from harmax.cli.live_line import LiveLine
from harmax.cli.training import TrainingFlags
from harmax.cli.usage import UsageError, check_folder, checking_usage, print_json
from harmax.cli.vision import train_spec
from harmax.data.images.picture_list import LIST, Opened, open_pictures
from harmax.environment import choose_device
from harmax.errors import needs
from harmax.files import write_json
from harmax.train.pictures.backbones import is_file
from harmax.train.pictures.settings import PicturesSpec, choose_settings
from harmax.train.pictures.train import Telling, check_output, train_on_backbone


def train_pictures(flags: TrainingFlags, spec: PicturesSpec) -> int:
    """Open the pictures, choose what is left out, train, and print where the model is."""
    with checking_usage():
        with needs("statistics"):  # a missing one is better noticed before the work
            import scipy  # noqa: F401
        check_folder(flags.output, "--output")
        if spec.backbone is not None and (flags.log or flags.change_schedule):
            raise UsageError(
                "`--log` and `--change-schedule` must be left out with --backbone, whose head learns in seconds."
            )
        check_output(flags.output, on_backbone=spec.backbone is not None)
        device = choose_device(flags.device)
        with LiveLine("reading pictures") as line:
            opened = open_pictures(
                spec.folder,
                labels=spec.labels,
                validation=spec.validation,
                seed=spec.seed,
                skip_broken=spec.skip_broken,
                tell=lambda done, of: line(f"reading pictures: {done:,} of {of:,}"),
            )
    _describe(opened)
    if spec.backbone is None:
        return _from_scratch(flags, spec, opened, gpu=device.startswith("cuda"))
    with LiveLine("loading the backbone") as line, checking_usage():
        try:
            record = train_on_backbone(
                spec, opened, flags.output, device=device, tell=Telling(lambda words: _say(f"  {words}"), line)
            )
        except FloatingPointError as error:
            raise UsageError(str(error)) from error
    _report(flags, opened, record, spec.backbone)
    return 0


def _from_scratch(flags: TrainingFlags, spec: PicturesSpec, opened: Opened, *, gpu: bool) -> int:
    from harmax.train.vision.data import FolderData
    from harmax.train.vision.pictures import Pictures, whole_squares

    pictures = opened.pictures
    with checking_usage():
        chosen, reasons = choose_settings(
            spec, pictures=len(pictures.train), side=opened.side, pixels=opened.pixels, gpu=gpu
        )
    for reason in reasons:
        _say(f"  {reason}")
    _say(
        "harmax: without --backbone a ResNet is trained from scratch, which needs thousands of pictures to be "
        "accurate; --backbone efficientnet-lite0 needs a few per class."
    )

    def open_data(world: Any) -> FolderData:
        crops = Pictures(pictures.open_side("train"), size=chosen.image_size, seed=chosen.seed, flip=chosen.flip)
        return FolderData(chosen, crops, whole_squares(pictures.open_side("test"), chosen.image_size), world)

    status = train_spec(flags, chosen, open_data)
    if flags.output.is_dir():
        write_json(flags.output / LIST, pictures.as_plain())
    return status


def _describe(opened: Opened) -> None:
    pictures = opened.pictures
    names = ", ".join(pictures.classes[:6]) + (", ..." if len(pictures.classes) > 6 else "")
    _say(
        f"{len(pictures.train) + len(pictures.test):,} pictures, {len(pictures.classes)} classes ({names}): "
        f"{len(pictures.train):,} to train on, {len(pictures.test):,} to test"
    )
    _say(f"  {opened.how}")
    for caution in opened.cautions:
        _say(f"harmax: {caution}")


def _report(flags: TrainingFlags, opened: Opened, record: dict[str, Any], backbone: str) -> None:
    model = flags.output / "model"
    if flags.json:
        print_json({**record, "folder": str(flags.output), "model": str(model)})
        return
    count = len(opened.pictures.test)
    found = share_interval(round(record["top1"] * count), count)
    _say(
        f"{100 * found.estimate:.1f} % of {count:,} test pictures are right (95 % interval {100 * found.low:.0f} to "
        f"{100 * found.high:.0f} %), loss {record['val_loss']:.3f} nat"
    )
    own = f" --backbone {backbone}" if is_file(backbone) else ""
    _say(f"see it with: harmax prototypes {flags.output}{own}")
    print(model)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
