"""The document has the same types in Python and in TypeScript, and its numbers come back as they were."""

import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from harmax.inspect.explorer import document

TYPES = Path(__file__).parents[3] / "site/src/document.ts"


def interfaces() -> dict[str, list[str]]:
    """Field names of every interface in document.ts."""
    found = re.findall(r"export interface (\w+) \{\n(.*?)\n\}", TYPES.read_text(), flags=re.DOTALL)
    return {name: re.findall(r"^  (\w+): ", body, flags=re.MULTILINE) for name, body in found}


def test_typescript_and_python_have_the_same_names() -> None:
    own = {name: kind for name, kind in vars(document).items() if isinstance(kind, type) and is_dataclass(kind)}
    assert {name: [one.name for one in fields(kind)] for name, kind in own.items()} == interfaces()


@given(arrays.arrays(np.float32, arrays.array_shapes(max_dims=3)))
def test_packed_numbers_come_back(found: np.ndarray) -> None:
    np.testing.assert_array_equal(document.unpack(document.pack(found)), found)


@given(st.lists(st.integers(-(2**15), 2**15 - 1)))
def test_packed_whole_numbers_come_back(found: list[int]) -> None:
    assert document.unpack(document.pack(found, "int16")).tolist() == found


def test_a_type_that_the_page_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`type` must be one of .*, got 'float64'"):
        document.pack([1.0], "float64")
