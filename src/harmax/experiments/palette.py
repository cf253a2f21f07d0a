"""One look for each head and model in every figure: the same colour, line and name wherever it appears."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HeadStyle:
    """How one head is drawn; lines differ in dash as well as colour, so that a grey print still reads."""

    label: str
    color: str
    line: str


# Okabe and Ito's colours, which stay apart for every common kind of colour blindness.
HEAD_STYLES: dict[str, HeadStyle] = {
    "harmonic": HeadStyle("harmonic", "#0072B2", "-"),
    "harmonic_2": HeadStyle("harmonic, exponent 2", "#CC79A7", ":"),
    "harmonic_amsgrad": HeadStyle("harmonic, AMSGrad", "#56B4E9", ":"),
    "cross_entropy": HeadStyle("cross-entropy", "#D55E00", "--"),
    "cross_entropy_bias": HeadStyle("cross-entropy with bias", "#009E73", "-."),
}


@dataclass(frozen=True)
class ModelStyle:
    """How one of the paper's four small models is drawn: the hue says which head, dash and marker which body."""

    label: str
    color: str
    line: str
    marker: str


# Keyed by body and head, in the order of legends and columns.
MODEL_STYLES: dict[tuple[str, str], ModelStyle] = {
    ("mlp", "linear"): ModelStyle("standard MLP", "#D55E00", "-", "o"),
    ("mlp", "harmonic"): ModelStyle("harmonic MLP", "#0072B2", "-", "o"),
    ("transformer", "linear"): ModelStyle("standard transformer", "#D55E00", "--", "^"),
    ("transformer", "harmonic"): ModelStyle("harmonic transformer", "#0072B2", "--", "^"),
}

# Tol's muted scheme: apart from one another for colour-blind readers, and apart from the heads' colours.
CLASS_COLORS = ("#332288", "#CC6677", "#44AA99", "#999933", "#AA4499", "#88CCEE", "#882255")

# Behind whatever the test shows in colour.
TRAIN_COLOR = "#777777"
