"""A page that shows a classifier: the pictures next to each center, its mistakes, its doubts, and how far to trust it.

The page is one file. It loads nothing, and everything in it that came from outside is escaped.
"""

# N test images, V classes, K neighbors

from collections.abc import Sequence

import numpy as np

from harmax.analysis.calibration import expected_calibration_error, reliability_curve
from harmax.inspect.classifiers import BINS, SCORES, ClassifierWithImages, Inspected, confusion_counts
from harmax.inspect.page_parts import page, plot_coverage, plot_reliability, text, thumbnail
from harmax.inspect.prototype_figures import MOST

SHOWN = 12
"""Mistakes, and doubts, that are shown."""
REACH = 110
"""Length of the longest bar of distances, in pixels."""


def prototype_page(subject: ClassifierWithImages, found: Inspected, rows: Sequence[int], *, title: str) -> str:
    """Return the page as HTML.

    Args:
        subject: the classifier and its images.
        found: what was measured on it.
        rows: the classes that are shown.
        title: what the classifier is called.
    """
    view, labels = found.view, subject.test.labels
    order = np.argsort(view.ratio, kind="stable")
    wrong = order[(view.winner != labels)[order]]
    unclear = order[::-1][:SHOWN]
    parts = [
        f"<h1>{text(title)}</h1>",
        _facts(subject, found),
        "<p>Each test picture stands beside two training pictures: the one next to its nearest center, and the one "
        "next to its second nearest center.</p>",
        '<nav aria-label="Contents"><a href="#wrong">Mistakes</a><a href="#unclear">Least clear</a>'
        '<a href="#classes">Classes</a><a href="#confusion">Confusion</a><a href="#trust">Trust</a></nav>',
        f'<h2 id="wrong">Mistakes ({len(wrong):,} of {len(labels):,})</h2>',
        "<p>The surest mistakes first: the distance to the predicted class is small beside the distance to the second "
        "nearest. Look for wrong labels here.</p>"
        if len(wrong)
        else "<p>No test picture was taken for another.</p>",
        _decisions(subject, found, wrong[:SHOWN]),
        '<h2 id="unclear">Least clear</h2>',
        "<p>Test pictures almost halfway between two centers. A ratio of 1 is exactly halfway.</p>",
        _decisions(subject, found, unclear),
        '<h2 id="classes">Classes</h2>',
        "<p>The training pictures nearest to each center, with their distances. They show what the center stands for. "
        "An orange frame marks a picture of another class.</p>",
        _classes(subject, found, rows),
        '<h2 id="confusion">Confusion</h2>',
        _confusion(subject, found),
        '<h2 id="trust">How far to trust it</h2>',
        _trust(subject, found),
    ]
    return page(title, "\n".join(parts))


def _facts(subject: ClassifierWithImages, found: Inspected) -> str:
    labels = subject.test.labels
    right = int((found.view.winner == labels).sum())
    gap = expected_calibration_error(found.log_probabilities, labels, bins=BINS)
    low, high = _wilson(right, len(labels))
    facts = [
        (
            f"{100 * right / len(labels):.1f} %",
            f"right, of {len(labels):,} test images (95 %: {low:.0f} to {high:.0f})",
        ),
        (f"{len(subject.classes):,}", "classes"),
        (f"{len(subject.train.labels):,}", "training images"),
        (f"{float(subject.classifier.head.exponent):.3g}", "exponent"),
        (f"{100 * gap:.1f} %", f"gap between confidence and accuracy ({BINS} bins)"),
    ]
    boxes = "".join(f"<div><b>{text(number)}</b><small>{text(words)}</small></div>" for number, words in facts)
    return f'<div class="facts">{boxes}</div>'


def _wilson(count: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share, in percent, without scipy."""
    z2 = 1.959964**2
    share, middle = count / total, (count + z2 / 2) / (total + z2)
    half = 1.959964 * (share * (1 - share) / total + z2 / (4 * total**2)) ** 0.5 / (1 + z2 / total)
    return 100 * (middle - half), 100 * (middle + half)


def _figure(picture: np.ndarray, name: str, words: str, kind: str = "") -> str:
    mark = f' class="{kind}"' if kind else ""
    # A long path is broken behind its folder.
    below = f"<b>{text(words)}</b><br>{text(name).replace('/', '/<wbr>')}"
    return f"<figure{mark}>{thumbnail(picture, name)}<figcaption>{below}</figcaption></figure>"


def _decisions(subject: ClassifierWithImages, found: Inspected, chosen: np.ndarray) -> str:
    if not len(chosen):
        return ""
    view, near, names = found.view, found.near, subject.classes
    pictures = subject.test.pictures(chosen)
    longest = float(view.runner_up_distance[chosen].max()) or 1.0
    cards = []
    for place, picture in zip(chosen, pictures, strict=True):
        label, winner, second = (int(one[place]) for one in (subject.test.labels, view.winner, view.runner_up))
        beside = near.images[[winner, second], 0]
        first_picture, second_picture = subject.train.pictures(beside)
        kind = "won" if winner == label else "wrong"
        row = "".join(
            [
                _figure(picture, subject.test.name(place), f"is {names[label]}"),
                _figure(first_picture, subject.train.name(int(beside[0])), f"nearest: {names[winner]}", kind),
                _figure(second_picture, subject.train.name(int(beside[1])), f"second: {names[second]}"),
            ]
        )
        bars = _bar("winner", names[winner], view.winner_distance[place], longest)
        bars += _bar("", names[second], view.runner_up_distance[place], longest)
        sure = float(np.exp(found.log_probabilities[place].max()))
        cards.append(
            f'<div class="card"><div class="row">{row}</div>{bars}'
            f"<small>ratio {view.ratio[place]:.2f}, confidence {sure:.0%}</small></div>"
        )
    return f'<div class="cards">{"".join(cards)}</div>'


def _bar(kind: str, name: str, distance: float, longest: float) -> str:
    width = REACH * float(distance) / longest
    return (
        f'<div class="bar {kind}"><i style="width:{width:.0f}px"></i><span>{distance:.3g} to {text(name)}</span></div>'
    )


def _classes(subject: ClassifierWithImages, found: Inspected, rows: Sequence[int]) -> str:
    names, labels = subject.classes, subject.test.labels
    cards = []
    for number in rows:
        places, distances = found.near.images[number], found.near.distances[number]
        figures = []
        for place, distance, picture in zip(places, distances, subject.train.pictures(places), strict=True):
            other = int(subject.train.labels[place])
            words = f"{distance:.3g}" + (f" ({names[other]})" if other != number else "")
            figures.append(_figure(picture, subject.train.name(int(place)), words, "other" if other != number else ""))
        own = labels == number
        right = int((found.view.winner[own] == number).sum())
        share = f"{right} of {int(own.sum())} test images right" if own.any() else "no test images"
        cards.append(
            f'<div class="card"><h3>{text(names[number])} <small>{share}</small></h3>'
            f'<div class="row">{"".join(figures)}</div></div>'
        )
    more = "" if len(rows) == len(names) else f"<p>{len(rows)} of {len(names)} classes; --classes chooses others.</p>"
    return f'{more}<div class="cards">{"".join(cards)}</div>'


def _confusion(subject: ClassifierWithImages, found: Inspected) -> str:
    counts, names = confusion_counts(subject, found), subject.classes
    if len(names) > MOST:
        return _most_confused(counts, names)
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in names)
    lines = []
    for name, row in zip(names, counts, strict=True):
        total = max(int(row.sum()), 1)
        cells = "".join(
            f'<td style="background:rgba(var(--heat),{0.55 * count / total:.2f})">{count}</td>'
            if count
            else '<td class="zero">0</td>'
            for count in row
        )
        lines.append(f'<tr><th scope="row">{text(name)}</th>{cells}</tr>')
    return (
        "<p>Rows are the true classes, columns the predicted ones. Each cell is a number of test images.</p>"
        f'<div class="wide" tabindex="0"><table><tr><th>is \\ taken for</th>{head}</tr>{"".join(lines)}</table></div>'
    )


def _most_confused(counts: np.ndarray, names: Sequence[str]) -> str:
    off = counts - np.diag(np.diag(counts))
    order = np.argsort(-off, axis=None, kind="stable")[:MOST]
    lines = []
    for true, taken in zip(*np.unravel_index(order, off.shape), strict=True):
        if off[true, taken]:
            lines.append(
                f"<tr><td>{text(names[true])}</td><td>{text(names[taken])}</td><td>{off[true, taken]}</td></tr>"
            )
    return (
        f"<p>The most frequent confusions of {len(names)} classes.</p><table>"
        f"<tr><th>is</th><th>taken for</th><th>test images</th></tr>{''.join(lines)}</table>"
    )


def _trust(subject: ClassifierWithImages, found: Inspected) -> str:
    curve = reliability_curve(found.log_probabilities, subject.test.labels, bins=BINS)
    reliability = plot_reliability(curve.confidence, curve.accuracy, curve.counts)
    coverage = plot_coverage([(one.coverage, one.accuracy) for one in found.curves.values()])
    first, second = SCORES.values()
    return (
        f'<div class="plots"><div><h3>Is it right as often as it says?</h3>{reliability}<p class="faint">Dots on the '
        "dashed line: the confidence is the accuracy. Below it the classifier is too sure. Large dots are many test "
        f'images.</p></div><div><h3>What abstaining gains</h3>{coverage}<p class="faint"><span class="key"></span>'
        f'{text(first)}<span class="key b"></span>{text(second)}. Only the clearest images are answered.</p></div>'
        "</div>"
    )
