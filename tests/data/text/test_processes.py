"""Worker processes that encode."""

from types import SimpleNamespace

import pytest

from harmax.data.text.processes import encode_in_order
from token_shards import DyingEncoding, make_texts


def test_a_process_that_dies_is_an_error() -> None:
    items = [SimpleNamespace(text=text) for text in make_texts(4)]
    with pytest.raises(RuntimeError, match=r"tokenizing process .*ended with status 9"):
        list(encode_in_order(DyingEncoding(), items, workers=2))
