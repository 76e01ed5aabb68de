"""What is equal is saved as equal bytes, whatever is said of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from millstream.models.weights.same_bytes import save_alike

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(max_examples=60, deadline=None)
@given(about=st.dictionaries(WORDS, WORDS, min_size=1, max_size=6))
def test_equal_tensors_and_words_are_equal_files(about: dict[str, str]) -> None:
    tensors = {
        name: torch.arange(size, dtype=torch.float16) for name, size in (("b.weight", 6), ("a", 1), ("c", 0))
    }
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{number}.safetensors") for number in range(4)]
        for path in paths:
            save_alike(tensors, path, dict(reversed(about.items())) if path == paths[0] else about)
        assert len({path.read_bytes() for path in paths}) == 1
        with safe_open(paths[0], framework="pt") as file:
            assert file.metadata() == about
            assert set(file.keys()) == tensors.keys()
            assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in tensors.items())
