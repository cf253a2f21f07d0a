"""Word pairs: read as they were written, refused where they are not whole, and turned into last tokens."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from harmax.data.folder import find_data, read_text
from harmax.data.words import SAMPLE_PAIRS, WORD_TASKS, encode_pairs, encode_words, load_pairs
from harmax.errors import DamagedError

needs_data = pytest.mark.skipif(find_data() is None, reason="no data folder")
ROWS = [{"input": "Wort ", "output": " word"}, {"input": "naïve", "output": "naïf"}]


class Syllables:
    """Two letters a token; like GPT-2's encoding it sees a blank before a word."""

    def encode(self, text: str, /) -> list[int]:
        return [sum(map(ord, text[at : at + 2])) for at in range(0, len(text), 2)]


def write(folder: Path, content: bytes, name: str = "synonym.json.gz") -> Path:
    (folder / "function_vectors").mkdir(exist_ok=True)
    (folder / "function_vectors" / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("packed", [True, False])
def test_pairs_come_in_order_and_without_blanks_around_them(tmp_path: Path, packed: bool) -> None:
    text = json.dumps(ROWS).encode()
    write(tmp_path, gzip.compress(text) if packed else text, "synonym.json.gz" if packed else "synonym.json")
    assert load_pairs("synonym", tmp_path) == [("Wort", "word"), ("naïve", "naïf")]


def test_the_folder_is_the_one_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, gzip.compress(json.dumps(ROWS).encode()))
    monkeypatch.setenv("HARMAX_DATA", str(tmp_path))
    assert len(load_pairs("synonym")) == 2
    monkeypatch.setenv("HARMAX_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(ValueError, match=r"`HARMAX_DATA` must name a folder, got '.*elsewhere'"):
        load_pairs("synonym")
    monkeypatch.delenv("HARMAX_DATA")
    monkeypatch.chdir(tmp_path)  # where there is no ../shared/data
    with pytest.raises(FileNotFoundError, match="set HARMAX_DATA"):
        load_pairs("synonym")


def test_a_missing_task_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"function_vectors/antonym\.json\.gz must be in .*neither is there"):
        load_pairs("antonym", tmp_path)
    with pytest.raises(ValueError, match="did you mean 'antonym'"):
        load_pairs("antonyms", tmp_path)


BROKEN = {
    "cut short": (gzip.compress(json.dumps(ROWS).encode())[:-20], "json.gz must be a whole gzip file"),
    "not packed": (b"not a packed file", "json.gz must be a whole gzip file"),
    "not text": (gzip.compress(b"\xff\xfe\x00"), "json.gz must be UTF-8"),
    "not JSON": (gzip.compress(b'[{"input": "a"'), "must be JSON"),
    "empty": (gzip.compress(b"[]"), "must be a list of word pairs"),
    "no list": (gzip.compress(b'{"input": "a", "output": "b"}'), "must be a list of word pairs, got dict"),
    "half a pair": (gzip.compress(b'[{"input": "a", "output": "b"}, {"input": "a"}]'), "in row 1"),
    "a number": (gzip.compress(b'[{"input": "a", "output": 5}]'), "in row 0"),
    "a blank": (gzip.compress(b'[{"input": "  ", "output": "b"}]'), "in row 0"),
    "a list of lists": (gzip.compress(b'[["a", "b"]]'), "in row 0"),
}
"""What is broken: the file, and what its error says. By name, as packed bytes hold the time and so do their test names.
"""


@pytest.mark.parametrize(("content", "message"), BROKEN.values(), ids=BROKEN)
def test_what_is_not_whole_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DamagedError, match=message):
        load_pairs("synonym", write(tmp_path, content))


def test_a_word_becomes_its_last_token_and_no_blank_is_put_before_it() -> None:
    tokens = encode_words(["ab", "cdef", "g"], Syllables())
    assert tokens.tolist() == [ord("a") + ord("b"), ord("e") + ord("f"), ord("g")]
    assert tokens.dtype == np.int64
    pairs = encode_pairs([("ab", "xxab"), ("cd", "ef")], Syllables())
    assert pairs.shape == (2, 2)
    assert pairs[0, 0] == pairs[0, 1]  # they end alike
    assert pairs[1, 0] != pairs[1, 1]


def test_words_without_tokens_and_a_text_for_a_list_are_refused() -> None:
    with pytest.raises(ValueError, match="got none for ''"):
        encode_words(["ab", ""], Syllables())
    with pytest.raises(TypeError, match="must be a list of words, got the text 'word'"):
        encode_words("word", Syllables())


def test_sample_pairs_are_of_the_papers_tasks_and_name_no_word_twice() -> None:
    assert len(set(WORD_TASKS)) == 12
    assert set(SAMPLE_PAIRS) <= set(WORD_TASKS)
    for pairs in SAMPLE_PAIRS.values():
        words = [word for pair in pairs for word in pair]
        assert len(pairs) >= 4
        assert len(set(words)) == len(words)


@needs_data
def test_the_twelve_tasks_are_the_papers() -> None:
    listed = json.loads(read_text("function_vectors/paper_twelve.json"))
    assert [f"{task}.json" for task in WORD_TASKS] == listed
    counts = {task: len(load_pairs(task)) for task in WORD_TASKS}
    assert counts["capitalize"] == 813
    assert counts["country-capital"] == 197
    assert sum(counts.values()) == 23092
    assert all(first.lower() == second.lower() for first, second in load_pairs("capitalize"))


@needs_data
def test_sample_pairs_are_single_tokens_of_gpt2() -> None:
    vocabulary = json.loads(read_text("gpt2_bpe/encoder.json"))
    assert all(word in vocabulary for pairs in SAMPLE_PAIRS.values() for pair in pairs for word in pair)
