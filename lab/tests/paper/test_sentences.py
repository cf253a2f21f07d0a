"""Every sentence of the paper that claims something is in the table, as it stands in the paper, and has an entry."""

import os
import re
from pathlib import Path

import pytest

from harmax_lab.experiments import EXPERIMENTS
from harmax_lab.paper import MOST_WORDS, SENTENCES, sources_of
from paper.tex import sentences

PAPER = Path(os.environ.get("HARMAX_PAPER", Path(__file__).parents[4] / "shared/paper/harmonic-loss.tex"))
NAMED = {key for experiment in EXPERIMENTS.values() for claim in experiment.claims for key in claim.sentences}


def words(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


@pytest.mark.parametrize("key", SENTENCES)
def test_a_sentence_has_an_entry_or_restates_one_that_has(key: str) -> None:
    sentence = SENTENCES[key]
    assert not (sentence.restates and key in NAMED)
    assert set(sources_of(key)) <= NAMED


def test_claims_name_sentences_of_the_table() -> None:
    assert set(SENTENCES) >= NAMED


@pytest.mark.parametrize("key", SENTENCES)
def test_a_quote_is_short(key: str) -> None:
    assert len(SENTENCES[key].words.replace("...", "").split()) <= MOST_WORDS


@pytest.mark.skipif(not PAPER.is_file(), reason="needs the paper's source; HARMAX_PAPER names it")
def test_quotes_are_the_papers_own_words() -> None:
    source = sentences(PAPER.read_text())
    for sentence in SENTENCES.values():
        text, start = words(source[sentence.place, sentence.number]), 0
        for part in sentence.words.split("..."):
            start = text.find(words(part), start)
            assert start >= 0, (sentence.key, part)


SMALL = r"""
\begin{abstract} It helps. \textbf{Always}? \end{abstract}
\section{One} Text, see Fig.~\ref{a}. It has $x^2$ in it~\cite{b}.
\begin{figure} \caption{\textbf{Left}: it {falls}. Right: it rises.} \end{figure}
\subsection{Inner} Inside it holds, e.g. here.
\section*{Acknowledgements} Thanks to all.
\begin{thebibliography}{1} \bibitem{b} Someone. A title. \end{thebibliography}
\appendix \section{More} The end.
\end{document}
"""


def test_sentences_are_numbered_place_by_place() -> None:
    found = sentences(SMALL)
    assert found == {
        ("Abstract", 1): "It helps.",
        ("Abstract", 2): "Always?",
        ("1", 1): "Text, see Fig. a.",
        ("1", 2): "It has x^2 in it.",
        ("1.1", 1): "Inside it holds, e.g. here.",
        ("A", 1): "The end.",
        ("Fig. 1", 1): "Left: it falls.",
        ("Fig. 1", 2): "Right: it rises.",
    }
