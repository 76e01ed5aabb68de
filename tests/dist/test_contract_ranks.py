"""The contract between front and mesh, where ranks are not alike: told in one line by the rank that knows,
and no process is left. Every test breaks real processes in one way; ids as in the contract's table."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest

from millstream.core.errors import MeshError
from millstream.core.speed import Speed
from millstream.core.topology import Topology
from millstream.engine.engine import Engine
from millstream.mesh.processes import Run
from tests.dist import broken
from tests.dist.meshes import LIMITS, MODEL, mesh_engine

COMPILING = replace(LIMITS, window_s=20.0)
"""A rank that compiles may be silent for long on a machine that others use."""


def refusal(run: Run, compile_backend: str = "") -> str:
    """What the front says of a mesh whose processes do this."""
    begun = time.monotonic()
    limits = COMPILING if compile_backend else LIMITS
    with (
        pytest.raises(MeshError) as told,
        mesh_engine(run=run, compile_backend=compile_backend, limits=limits),
    ):
        pass
    assert time.monotonic() - begun < 60, "that was close to a hang"
    (line,) = str(told.value).splitlines()
    return line


def test_om_04_ranks_of_different_topology_or_configuration_print_the_difference_and_exit() -> None:
    line = refusal(broken.other_topology)
    assert "topology: rank 0 has front+tp2; rank 1 has front+tp2; rank 2 has front+sp2" in line
    line = refusal(broken.other_dtype)
    assert "dtype: rank 0 has float32; rank 1 has float32; rank 2 has bfloat16" in line


def test_om_05_a_collective_that_one_rank_alone_calls_is_noticed_before_anybody_waits() -> None:
    line = refusal(broken.debug_collective)
    assert "part ways" in line
    assert "rank 2 calls sum (debug) of [1] on cpu" in line
    assert "rank 1 calls collect (digests of inputs) of [3] on cpu" in line


def test_om_06_a_broadcast_inside_a_block_is_refused_by_the_wrapper() -> None:
    assert "debug: no broadcast of [1] on group stage0 (1, 2) inside a block" in refusal(
        broken.broadcast_in_a_block
    )


def test_om_08_a_collective_of_the_mesh_on_the_world_is_refused_before_the_backend() -> None:
    assert "attention: no sum of [1] on group world (1, 2): the group is for start-up" in refusal(
        broken.sum_on_the_world
    )


def test_om_11_an_input_that_differs_on_one_rank_is_found_by_its_digest() -> None:
    line = refusal(broken.perturbed_input)
    assert "inputs of call 1 differ: rank 1 has" in line


def test_om_12_a_share_of_the_weights_that_was_changed_is_found_by_its_fingerprint() -> None:
    line = refusal(broken.other_weights)
    assert "weights: rank 1 has" in line
    assert "the weights of rank 2 have changed" in refusal(broken.rotting_weights)


def test_c_01_a_rank_that_compiles_alone_is_found_at_the_start() -> None:
    assert "compile: rank 0 has off; rank 1 has off; rank 2 has eager" in refusal(broken.compiles_alone)


def test_ranks_with_different_speed_ups_are_found_at_the_start() -> None:
    assert "speed: rank 0 has off; rank 1 has off; rank 2 has paired_commits" in refusal(
        broken.carries_commits_alone
    )


def test_cards_of_different_kinds_are_found_before_weights_are_read() -> None:
    assert "ranks differ (start). card: rank 1 has NVIDIA H200; rank 2 has NVIDIA L4" in refusal(
        broken.other_card
    )


def test_a_fast_decoder_carried_commits_and_fast_blocks_go_with_a_mesh() -> None:
    speed = Speed(decoder=True, paired_commits=True, blocks=True)
    place = dict(topology=Topology.parse("front+tp2"), limits=LIMITS)
    with (
        Engine("wan-tiny", **MODEL, **place, speed=speed) as engine,
        engine.session("sea", seed=1) as session,
    ):
        fast = [chunk.frames for chunk in session.stream(4)]
    plain = [chunk.frames for chunk in Engine("wan-tiny", **MODEL).session("sea", seed=1).stream(4)]
    assert all(abs(one.astype(int) - other).max() <= 1 for one, other in zip(fast, plain, strict=True))


def test_c_02_a_collective_that_is_hidden_from_the_compiler_fails_the_gate() -> None:
    assert re.search(r"rank 1 compiled with \d+ graph breaks", refusal(broken.hides_a_collective, "eager"))


def test_c_03_a_graph_that_breaks_on_one_rank_only_is_found_after_warm_up() -> None:
    assert re.search(r"rank 2 compiled with \d+ graph breaks", refusal(broken.breaks_its_graph, "eager"))


def test_ranks_that_compile_alike_stream_what_others_do() -> None:
    with (
        mesh_engine(compile_backend="eager", limits=COMPILING) as engine,
        engine.session("sea", seed=1) as session,
    ):
        compiled = [chunk.frames for chunk in session.stream(3)]
    plain = [chunk.frames for chunk in Engine("wan-tiny", **MODEL).session("sea", seed=1).stream(3)]
    assert all(abs(one.astype(int) - other).max() <= 1 for one, other in zip(compiled, plain, strict=True))


def test_c_04_attention_that_resolves_differently_is_found_at_the_start() -> None:
    assert "attention: rank 1 has flash" in refusal(broken.other_attention)


def test_c_05_chunks_of_a_shape_that_was_not_warmed_up_are_made_and_nothing_compiles() -> None:
    with mesh_engine(run=broken.compiles_late, compile_backend="eager", limits=COMPILING) as engine:
        frames = {}
        for window in (engine.spec.stream.window, 2 * engine.spec.stream.window):
            with engine.session("sea", seed=1, window=window) as session:
                frames[window] = [chunk.frames for chunk in session.stream(3)]
        assert engine.mesh.recoveries == 0
    for window, found in frames.items():
        plain = [
            chunk.frames
            for chunk in Engine("wan-tiny", **MODEL).session("sea", seed=1, window=window).stream(3)
        ]
        assert all(abs(one.astype(int) - other).max() <= 1 for one, other in zip(found, plain, strict=True))


def test_a_rank_that_runs_out_of_memory_is_the_one_that_is_named() -> None:
    assert "rank 2: the device ran out of memory" in refusal(broken.out_of_memory)


def test_a_rank_that_is_started_twice_is_told_so() -> None:
    assert "rank 1 is taken: it was started twice" in refusal(broken.started_twice)
