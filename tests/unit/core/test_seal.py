"""Records that tell when they were changed by hand."""

from __future__ import annotations

import json

from millstream.core.seal import is_as_sealed, sealed

RECORD = {"commit": "1234567+", "measured": {"rows": [1, 2.5, None], 3: "a key that is no string"}}


def test_a_record_read_from_its_file_is_as_it_was_sealed_however_it_is_laid_out() -> None:
    text = json.dumps(sealed(RECORD))
    assert is_as_sealed(json.loads(text))
    assert is_as_sealed(dict(reversed(json.loads(text).items())))


def test_a_record_with_one_letter_less_is_not_as_sealed() -> None:
    record = json.loads(json.dumps(sealed(RECORD)))
    assert not is_as_sealed(record | {"commit": "1234567"})


def test_a_record_without_a_digest_is_not_as_sealed() -> None:
    assert not is_as_sealed(RECORD)
