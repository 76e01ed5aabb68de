"""Keep a stream's journal and generate it again to the same bits: python examples/replay.py [JOURNAL]"""

import sys
from pathlib import Path

from millstream import Engine, SetPrompt
from millstream.engine.replay import replay
from millstream.session.journal import JournalWriter, read_journal

path = Path(sys.argv[1] if len(sys.argv) > 1 else "run.jsonl")

engine = Engine("brook", weights="bundled")
header = engine.journal_header(engine.stream_config(seed=3), "example")
with JournalWriter(path, header, overwrite=True) as journal:
    session = engine.session("a red kite", config=header.config, session_id="example", journal=journal)
    session.control(SetPrompt(prompt="a white boat on the sea at dawn"), at_chunk=2)
    digests = [chunk.digest for chunk in session.stream(chunks=4)]

for again, digest in zip(replay(engine, read_journal(path)), digests, strict=True):
    said = "the same" if again.chunk.digest == digest else "others"
    print(f"chunk {again.chunk.index}: the bits are {said}")
