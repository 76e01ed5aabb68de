"""Change a stream while it runs, and read at which chunk each change applied: python examples/steer.py"""

from millstream import Cut, Engine, SetPrompt, SetSeed, SetWindow, errors

engine = Engine("brook", weights="bundled")
session = engine.session("a red balloon over the hills at dusk")

changes = {
    2: SetPrompt(prompt="a white boat on the sea at dawn", mode="recompute"),
    3: SetSeed(seed=7),
    4: Cut(),
}
for index, control in changes.items():
    receipt = session.control(control, at_chunk=index)
    print(f"{type(control).__name__} is {receipt.state} for chunk {receipt.chunk_index}")
try:
    session.control(SetWindow(window=2, sink=5))
except errors.MillstreamError as error:
    print(f"refused: {error}")

for chunk in session.stream(chunks=6):
    print(f"chunk {chunk.index} of epoch {chunk.epoch}: {[receipt.state for receipt in chunk.receipts]}")
