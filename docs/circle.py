"""Make the film of the README: numbers becoming a circle, standard loss beside harmonic loss.

    python docs/circle.py                       some minutes on two CPU cores; writes docs/images/circle.gif and .json
    python docs/circle.py --output film.gif     somewhere else

It is `harmax watch modular_addition --epochs 3000`: the matched protocol, all 20 seeds, and of each loss the median
run. The .json has the counts of all seeds, which the film's caption in the README says.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harmax.environment import cores
from harmax.figures import house_style
from harmax.files import write_json
from harmax_lab.algorithmic import anchors, measures
from harmax_lab.algorithmic.film import draw_frames, write_film
from harmax_lab.algorithmic.watch import describe_runs, train

TASK = "modular_addition"
OUTPUT = Path(__file__).parent / "images/circle.gif"


def main(output: str | Path = OUTPUT, *, seeds: Sequence[int] = anchors.SEEDS, epochs: int = 3000) -> dict[str, float]:
    """Train, choose, draw and write the film; return the share of variance on one circle of the two runs shown."""
    task, watched = train(TASK, seeds=seeds, epochs=epochs, workers=min(2, cores()))
    with house_style():
        frames = list(draw_frames(task, {side.arm: side.result for side in watched}, describe_runs(watched)))
    write_film(Path(output), frames)
    shares, rows = {}, []
    for side in watched:
        ends = {seed: measures.last_embedding(result) for seed, result in side.runs.items()}
        left = {
            seed: 1.0 if end is None else measures.fit(task.structure, end, None).residual for seed, end in ends.items()
        }
        clean = sum(one <= measures.CLEAN for one in left.values())
        passed = [measures.grokking(result)["test_epoch"] for result in side.runs.values()]
        counts = {"clean circles": clean, "never": int(np.isinf(passed).sum()), "median epoch": np.median(passed) + 1}
        rows.append({"head": side.arm[1], "runs": len(side.runs), **counts})  # a film counts finished epochs
        shares[side.arm[1]] = 1 - left[side.seed]
        print(f"{side.arm[1]}: {side.sentence}", flush=True)
        print(f"{side.arm[1]}: {clean} of {len(seeds)} runs end on a clean circle", flush=True)
    table = {"title": "Runs behind the film", "rows": rows}
    write_json(Path(output).with_suffix(".json"), {"verdicts": [], "tables": [table]})
    print(output)
    return shares


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default=OUTPUT, type=Path, help="a .gif")
    main(parser.parse_args().output)
