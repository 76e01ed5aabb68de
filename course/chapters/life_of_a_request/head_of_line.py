"""A server that waits until its whole batch is done: short requests wait for long ones, and places stand
empty."""

from __future__ import annotations

from course.reader import Reader
from course.tinylm.engine import TextRequest, TinyEngine
from course.tinylm.training import trained

LENGTHS = (24, 3, 3, 3, 3, 3)
PLACES = 2


def run(reader: Reader) -> None:
    whole, turn_by_turn = (turns_until_done(in_whole_batches) for in_whole_batches in (True, False))
    reader.say(f"requests of {', '.join(map(str, LENGTHS))} letters, {PLACES} places; done in turn:")
    reader.say(f"whole batches: {', '.join(map(str, whole))}")
    reader.say(f"turn by turn:  {', '.join(map(str, turn_by_turn))}")
    assert sum(turn_by_turn) < sum(whole), "nobody waits for a batch to end"
    assert turn_by_turn[0] == LENGTHS[0], "the long one is not served later for that"
    reader.say(
        "symptom: requests of three letters take as long as the longest; the mean number of letters a second "
        "looks fine"
    )
    reader.say(
        "tool: the time to the first letter of every request, not the mean; for streams, millstream bench load"
    )
    reader.say("fix: a place that is free is given away in the next turn")


def turns_until_done(in_whole_batches: bool) -> list[int]:
    """The turn in which each request got its last letter."""
    engine = TinyEngine(trained(), most_running=PLACES)
    asked = [TextRequest(prompt="\ntwo red ", most_letters=length, temperature=0.0) for length in LENGTHS]
    for request in asked:
        engine.add(request)
    turn = 0
    done = dict[int, int]()
    while engine.waiting or engine.running:
        if in_whole_batches:  # nobody comes in while anybody runs
            engine.most_running = PLACES if not engine.running else 0
        turn += 1
        done |= {id(request): turn for request in engine.turn() if request.is_done}
    return [done[id(request)] for request in asked]
