"""What the two GPT-2s cost and how far they came: losses over the training, and the gap to text they have not read."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import Interval, mean_interval
from harmax.figures import HEAD_STYLES, Picture
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding, Verdict
from harmax_lab.kit.experiment import Summary, conclude
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table
from harmax_lab.language.spec import HARMONIC, NANOGPT, STANDARD, ArmCell, LanguageSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = Mapping[ArmCell, CellResult]

PAPER_LOSS = {STANDARD: 3.159, HARMONIC: 3.146}
PAPER = (
    "3.146 (harmonic) against 3.159 (standard) after 10k steps of 480 x 1024 tokens of OpenWebText, one run each: "
    "other text, and twenty times the tokens of the full profile here."
)
STYLES = {STANDARD: HEAD_STYLES["cross_entropy"], HARMONIC: HEAD_STYLES["harmonic"]}
AS_STRONG = 0.05
LEAST_SEEDS = 3
LEAST_TOKENS = 250_000_000
SMOOTHED = 5  # logged steps

CLAIMS = (
    Claim(
        "lower_loss",
        "After the same tokens in the same order the harmonic GPT-2 has a lower validation loss than the standard one.",
        PAPER,
    ),
    Claim(
        "smaller_gap",
        "Its training loss, on as many sequences, lies no farther below its validation loss than the standard one's.",
        "Not reported.",
        control=True,
    ),
    Claim(
        "strong_baseline",
        f"The standard arm is no weak baseline: its validation loss is at most {AS_STRONG} above that of nanoGPT's "
        "batch (480 sequences) and learning rate (6e-4) after as many tokens.",
        "Not reported.",
        control=True,
    ),
)


def by_seed(results: Results, arm: str, metric: str) -> dict[int, float]:
    """Return one number of an arm's finished runs, by seed."""
    return {cell.seed: float(result.metrics[metric]) for cell, result in results.items() if cell.arm == arm}


def difference(results: Results, metric: str) -> Interval:
    """Return harmonic minus standard of one number, paired over seeds, with Student's interval."""
    harmonic, standard = (by_seed(results, arm, metric) for arm in (HARMONIC, STANDARD))
    seeds = sorted(harmonic.keys() & standard.keys())
    return mean_interval([harmonic[seed] - standard[seed] for seed in seeds])


def _means(results: Results, metric: str) -> dict[str, float]:
    return {arm: float(np.mean(list(by_seed(results, arm, metric).values()))) for arm in (HARMONIC, STANDARD)}


def _words(found: Interval, seeds: int) -> str:
    if seeds == 1:
        return f"{found.estimate:+.3f}, one model an arm"
    return f"{found.estimate:+.3f} [{found.low:+.3f}, {found.high:+.3f}] over {seeds} seeds"


def judge_loss(results: Results) -> Finding:
    """Judge by the paired difference of the validation losses."""
    found, means = difference(results, "val_loss"), _means(results, "val_loss")
    seeds = len(by_seed(results, HARMONIC, "val_loss"))
    higher = found.above(0)
    return Finding(
        None if higher is None else not higher,
        f"Validation loss {means[HARMONIC]:.3f} (harmonic) and {means[STANDARD]:.3f} (standard): a difference of "
        f"{_words(found, seeds)}.",
        {"difference": found._asdict(), **means},
    )


def judge_gap(results: Results) -> Finding:
    """Judge by the paired difference of the gaps."""
    found, means = difference(results, "gap"), _means(results, "gap")
    seeds = len(by_seed(results, HARMONIC, "gap"))
    times = next(iter(results.values())).metrics["times_seen"]
    larger = found.above(0)
    return Finding(
        None if larger is None else not larger,
        f"Validation minus training loss {means[HARMONIC]:+.3f} (harmonic) and {means[STANDARD]:+.3f} (standard), "
        f"where each token was seen {times:.2f} times: a difference of {_words(found, seeds)}.",
        {"difference": found._asdict(), **means},
    )


def judge_baseline(results: Results) -> Finding:
    """Judge by the first seed's validation losses, one model a recipe."""
    ((seed, nanogpt),) = by_seed(results, NANOGPT, "val_loss").items()
    standard = by_seed(results, STANDARD, "val_loss")[seed]
    return Finding(
        standard - nanogpt <= AS_STRONG,
        f"Validation loss {standard:.3f}, and {nanogpt:.3f} with nanoGPT's recipe: a difference of "
        f"{standard - nanogpt:+.3f}, one model a recipe.",
        {"difference": standard - nanogpt, STANDARD: standard, NANOGPT: nanogpt},
    )


JUDGES = {"lower_loss": judge_loss, "smaller_gap": judge_gap, "strong_baseline": judge_baseline}


def too_short(spec: LanguageSpec, claim: str) -> str:
    """Say why a spec cannot decide a claim; empty where it can."""
    if spec.embedded:
        return "Generated tokens say nothing about text."
    if spec.tokens < LEAST_TOKENS:
        return f"Only {spec.tokens / 1e6:.3g}M of at least {LEAST_TOKENS / 1e6:.0f}M tokens were trained on."
    if claim != "strong_baseline" and len(spec.seeds) < LEAST_SEEDS:
        return f"{len(spec.seeds)} of at least {LEAST_SEEDS} seeds: one seed's difference may be chance."
    return ""


def summarize(spec: LanguageSpec, results: Results) -> Summary:
    """Judge every claim, and tabulate where each run ends and the way there."""
    both = {STANDARD, HARMONIC} <= set(spec.arms)
    runs = [ArmCell(arm, seed) for arm in spec.arms for seed in spec.seeds]
    recipes = [ArmCell(arm, spec.seeds[0]) for arm in (STANDARD, NANOGPT)]
    recipes = recipes if spec.nanogpt_sequences and STANDARD in spec.arms else []
    verdicts: list[Verdict] = []
    for claim in CLAIMS:
        wanted = recipes if claim.id == "strong_baseline" else runs if both else []
        verdicts.append(conclude(claim.id, JUDGES[claim.id], wanted, results, too_short=too_short(spec, claim.id)))
    listed = runs + recipes[1:]
    ends = Table("The runs at their end", tuple(_end_row(spec, cell, results.get(cell)) for cell in listed))
    way = _way_table(spec, results)
    return Summary(tuple(verdicts), (ends, way) if way.rows else (ends,))


def _end_row(spec: LanguageSpec, cell: ArmCell, result: CellResult | None) -> dict[str, Any]:
    metrics = result.metrics if result else {}
    cost = metrics.get("cost", {})
    return {
        "arm": cell.arm,
        "seed": cell.seed,
        "exponent": metrics.get("exponent"),
        "sequences a step": spec.nanogpt_sequences if cell.arm == NANOGPT else spec.sequences,
        "learning rate": metrics.get("lr"),
        "tokens, M": spec.tokens / 1e6,
        "times each was seen": metrics.get("times_seen"),
        "validation loss": metrics.get("val_loss"),
        "training loss": metrics.get("train_loss"),
        "gap": metrics.get("gap"),
        "paper's validation loss (other text, 4915M tokens)": PAPER_LOSS.get(cell.arm),
        "tokens per second": cost.get("tokens_per_s"),
        "model FLOP utilization": cost.get("mfu"),
        "peak memory, GiB": cost.get("memory_gib"),
        "minutes of training": cost["training_seconds"] / 60 if "training_seconds" in cost else None,
    }


def _way_table(spec: LanguageSpec, results: Results) -> Table:
    """Tabulate the validation loss at up to ten evaluations, for the first seed."""
    curves = {arm: _val(results, arm, spec.seeds[0]) for arm in spec.arms}
    steps = sorted({step for found in curves.values() for step in found})
    chosen = [steps[place] for place in np.unique(np.linspace(0, len(steps) - 1, min(10, len(steps))).astype(int))]
    rows = []
    for step in chosen:
        losses = {f"{arm} validation loss": curves[arm].get(step) for arm in spec.arms}
        pair = [curves.get(arm, {}).get(step) for arm in (HARMONIC, STANDARD)]
        apart = pair[0] - pair[1] if pair[0] is not None and pair[1] is not None else None
        tokens = step * spec.tokens_per_step / 1e6
        rows.append({"step": step, "tokens, M": tokens, **losses, "harmonic minus standard": apart})
    return Table(f"Validation loss over the training, seed {spec.seeds[0]}", tuple(rows))


def _val(results: Results, arm: str, seed: int) -> dict[int, float]:
    result = results.get(ArmCell(arm, seed))
    if result is None:
        return {}
    return dict(zip(result.curves["val_step"].tolist(), result.curves["val_loss"].tolist(), strict=True))


def figures(spec: LanguageSpec, results: Results) -> dict[str, Picture]:
    """Draw the losses of both arms and their difference."""
    results = {cell: result for cell, result in results.items() if cell.arm in STYLES}
    if not results:
        return {}
    tokens = "generated tokens" if spec.embedded else "the corpus"
    return {
        "gpt2_losses": Picture(
            draw_losses(spec, results),
            f"GPT-2 ({spec.n_layer} layers, {spec.n_embd} wide) on {spec.tokens / 1e6:.3g}M tokens of {tokens}, the "
            "same ones in the same order for both heads. Left: loss of the training batches, smoothed (thin), and "
            "validation loss (marks). Right: harmonic minus standard validation loss, "
            + ("one model an arm." if len(spec.seeds) == 1 else "a line a seed."),
        )
    }


def draw_losses(spec: LanguageSpec, results: Results) -> "Figure":
    """Draw the losses on the left, their difference on the right."""
    figure = drawing.new_figure(10, 4.0)
    left, right = figure.subplots(1, 2)
    scale = spec.tokens_per_step / 1e6
    for cell, result in results.items():
        _draw_run(left, cell.arm, result, scale)
    # The first steps fall from log V; what there is to compare lies far below.
    losses = np.concatenate([result.curves["val_loss"] for result in results.values()])
    low, high = float(losses.min()), float(np.quantile(losses, 0.9))
    left.set(xlabel="tokens, millions", ylabel="loss", title="Loss")
    left.set_ylim(low - 0.15 * max(high - low, 0.1), high + 0.35 * max(high - low, 0.1))
    handles = [drawing.line_handle(f"{arm}, training batches", STYLES[arm].color, STYLES[arm].line) for arm in STYLES]
    handles += [drawing.mark_handle(f"{arm}, validation", "o", STYLES[arm].color) for arm in STYLES]
    left.legend(handles=handles, loc="upper right")
    left.set_xlim(left=0)
    right.set_xlim(left.get_xlim())
    right.axhline(0, color="#888888", linewidth=1, linestyle=":")
    for seed in spec.seeds:
        harmonic, standard = (_val(results, arm, seed) for arm in (HARMONIC, STANDARD))
        steps = sorted(harmonic.keys() & standard.keys())
        apart = [harmonic[step] - standard[step] for step in steps]
        right.plot([step * scale for step in steps], apart, "o-", color="#333333", markersize=4, linewidth=1.3)
    right.set(xlabel="tokens, millions", ylabel="harmonic minus standard", title="Difference of the validation losses")
    return figure


def _draw_run(axes: "Axes", arm: str, result: CellResult, scale: float) -> None:
    style, curves = STYLES[arm], result.curves
    if len(curves["loss"]) >= 2 * SMOOTHED:
        smooth = np.convolve(curves["loss"], np.ones(SMOOTHED) / SMOOTHED, mode="valid")
        step = curves["step"][SMOOTHED // 2 : -(SMOOTHED // 2)]
        axes.plot(step * scale, smooth, color=style.color, linestyle=style.line, linewidth=1)
    look = {"markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.5, "linestyle": "none"}
    axes.plot(curves["val_step"] * scale, curves["val_loss"], "o", color=style.color, **look)  # type: ignore[arg-type]
