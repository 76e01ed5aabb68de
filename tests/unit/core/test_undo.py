"""What was begun and cannot be finished is undone."""

from __future__ import annotations

import pytest

from millstream.core.undo import undone_by


def test_what_ends_well_stays() -> None:
    undone = list[str]()
    with undone_by(lambda: undone.append("undone")):
        pass
    assert undone == []


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_whatever_ends_it_undoes_it_and_is_not_swallowed(kind: type[BaseException]) -> None:
    undone = list[str]()
    with pytest.raises(kind), undone_by(lambda: undone.append("undone")):
        raise kind
    assert undone == ["undone"]
