"""One sum for each gradient pays the latency each time; buckets join gradients. How many sums are left, and
what they cost."""

from __future__ import annotations

from course.chapters.data_parallel.small_model import loss_of, make_model, make_rows
from course.reader import Reader
from millstream.core.errors import CourseError
from millstream.mesh.local_ranks import on_ranks
from millstream.planner.communication import all_reduce
from millstream.planner.hardware import NETWORK
from millstream.train.parallel.groups import create_world
from millstream.train.parallel.plan import BUCKET_BYTES
from millstream.train.parallel.replicas import Replicas

WIDTH = 64


def run(reader: Reader, layers: int = 6, kilobytes: int = 40) -> None:
    if min(layers, kilobytes) < 1:
        raise CourseError(f"--layers and --kilobytes must be 1 or more, got {layers} and {kilobytes}")
    model = make_model(layers, WIDTH)
    sizes = [parameter.numel() * 4 for parameter in model.parameters()]
    reader.say(f"{layers} layers, each with a weight of {max(sizes)} bytes and a bias of {min(sizes)} bytes")
    guess = reader.predict(
        f"gradients are filled into buckets of at most {kilobytes} kB. How many sums does a step take?"
    )
    counts = {
        limit: on_ranks(sums_of_a_step, 2, layers, limit)[0] for limit in (1, 1000 * kilobytes, BUCKET_BYTES)
    }
    reader.reveal(guess, counts[1000 * kilobytes], by="counted by the engine's record")
    assert counts[1] == len(sizes), f"{len(sizes)} gradients, {counts[1]} sums"
    assert counts[1] >= counts[1000 * kilobytes] >= counts[BUCKET_BYTES] >= 1, (
        f"larger buckets are fewer: {counts}"
    )
    for limit, count in counts.items():
        cost = count * all_reduce(sum(sizes) / count, 8, NETWORK)
        reader.say(
            f"buckets of {limit:9} bytes: {count:3} sums, over 8 ranks of a {NETWORK.name} {cost:.3f} ms by "
            "the planner"
        )
    reader.say(
        f"the engine's buckets are {BUCKET_BYTES} bytes: large enough for bandwidth, small enough to begin early"
    )


def sums_of_a_step(rank: int, world: int, layers: int, bucket_bytes: int) -> int:
    model = make_model(layers, WIDTH)
    group = create_world()
    replicas = Replicas(model, group, bucket_bytes=bucket_bytes)
    loss_of(model, make_rows(width=WIDTH)).backward()
    replicas.finish()
    return group.record.counts["sum", "gradients"]
