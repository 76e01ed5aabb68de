"""Which rate a session has, in the words that its people read."""

from __future__ import annotations

import pytest

from millstream.serving.admission_types import Admitted
from millstream.session.pacing import Pace
from tests.unit.serving.test_admission import admission, request


@pytest.mark.parametrize(
    ("fps", "why"), [(16, ", the rate brook was made for:"), (3, ", the most it may have:")]
)
def test_an_automatic_rate_says_whose_limit_it_is(fps: float, why: str) -> None:
    """A key may have less than a model was made for."""
    answer = admission().ask(request("a", rate="auto", pace=Pace(fps=fps, chunk_frames=12)), 0.0)
    assert isinstance(answer, Admitted)
    assert answer.note.startswith(f"plays {fps} frames a second{why} takes")
