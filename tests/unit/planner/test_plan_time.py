"""Predicted times against what was measured on an H200 and what others published."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.chunk_work import block_products, call_flops
from millstream.core.config import StreamConfig
from millstream.core.presets import MODELS, apply_schedule
from millstream.core.speed import ALL, parse_speed
from millstream.core.topology import LOCAL, Topology
from millstream.core.vae_layers import decoder_convs
from millstream.planner.communication import all_gather, all_reduce, all_to_all, point_to_point
from millstream.planner.hardware import NETWORK, NVLINK4, Link, find_device, parse_fleet
from millstream.planner.judge import PlanAsk, judge
from millstream.planner.search import search
from millstream.planner.software import SOFTWARE, software_of
from millstream.planner.time import chunk_time, decode_ms, wave_share
from millstream.planner.workload import Workload

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
PUBLISHED = replace(
    SOFTWARE["compiled"],
    conv_share=SOFTWARE["reference"].conv_share,
    vae_passes=SOFTWARE["reference"].vae_passes,
)
"""What others ran: a compiled DiT and the published VAE."""


def work(name: str, height: int, width: int, window: int, **options: object) -> Workload:
    spec = MODELS[f"wan2.1-t2v-{name}"]
    stream = replace(spec.stream, height=height, width=width, window=window)
    return Workload(spec=spec, stream=stream, **options)  # type: ignore[arg-type]


def fps(workload: Workload, gpus: str, topology: str) -> float:
    return (
        1e3
        * workload.chunk_frames
        / chunk_time(workload, parse_fleet(gpus), Topology.parse(topology)).period_ms
    )


@pytest.mark.parametrize(
    ("software", "name", "height", "width", "window", "precision", "ms"),
    [
        ("reference", "1.3b", 480, 832, 9, "native", 371),
        ("reference", "1.3b", 480, 832, 21, "native", 541),
        ("reference", "14b", 320, 576, 6, "native", 718),
        ("reference", "14b", 480, 832, 6, "native", 1610),
        ("compiled", "1.3b", 480, 832, 9, "native", 234),
        ("compiled", "14b", 320, 576, 6, "native", 518),
        ("compiled", "14b", 320, 576, 6, "fp8", 351),
        ("eager", "1.3b", 480, 832, 9, "native", 300.6),
        ("fast", "1.3b", 480, 832, 9, "native", 225.5),
        ("fast", "1.3b", 480, 832, 9, "fp8", 190.1),
        ("fast", "14b", 320, 576, 6, "fp8", 330.2),
    ],
)
def test_a_chunk_on_an_h200_takes_what_was_measured_within_a_tenth(
    software: str, name: str, height: int, width: int, window: int, precision: str, ms: float
) -> None:
    workload = work(name, height, width, window, software=SOFTWARE[software], precision=precision)
    assert chunk_time(workload, parse_fleet("H200"), Topology.parse("local")).mesh_ms == pytest.approx(
        ms, rel=0.1
    )


@pytest.mark.parametrize(
    ("software", "height", "width", "ms"),
    [
        ("reference", 480, 832, 245),
        ("reference", 320, 576, 120),
        ("compiled", 480, 832, 94),
        ("eager", 480, 832, 204.6),
        ("fast", 480, 832, 68.1),
        ("fast", 320, 576, 31.6),
    ],
)
def test_decoding_takes_what_was_measured_within_a_tenth(
    software: str, height: int, width: int, ms: float
) -> None:
    workload = work("1.3b", height, width, 9, software=SOFTWARE[software])
    assert decode_ms(workload, find_device("H200")) == pytest.approx(ms, rel=0.1)


def test_a_small_model_waits_for_its_host_and_the_plan_says_so() -> None:
    """Brook's networks would make five times as many pictures as a host beside an H200 hands on."""
    measured = json.loads((RESULTS / "served-brook-gpu.json").read_text())["measured"]["bench_stream"]["fps"]
    ask = PlanAsk(
        work=Workload(spec=MODELS["brook"], stream=MODELS["brook"].stream, software=software_of(ALL)),
        fleet=parse_fleet("1xH200"),
    )
    plan = judge(ask, LOCAL)
    low, high = plan.fps_range
    assert plan.waits_for_host
    assert low < measured < high
    assert plan.bound.startswith("host")
    large = judge(
        PlanAsk(work=work("1.3b", 480, 832, 9, software=software_of(ALL)), fleet=parse_fleet("1xH200")), LOCAL
    )
    assert not large.waits_for_host


@pytest.mark.parametrize(("topology", "published"), [("local", 20.0), ("tp2", 24.5), ("tp4", 27.0)])
def test_a_14b_model_on_one_two_and_four_h200_is_predicted_within_a_fifth(
    topology: str, published: float
) -> None:
    workload = work("14b", 320, 576, 6, software=PUBLISHED)
    assert fps(workload, "4xH200", topology) == pytest.approx(published, rel=0.2)


@pytest.mark.parametrize(
    ("name", "height", "width", "steps", "published"),
    [
        ("1.3b", 512, 512, 1, 64.52),
        ("1.3b", 480, 832, 1, 42.26),
        ("14b", 512, 512, 1, 58.28),
        ("14b", 480, 832, 1, 39.24),
        ("14b", 512, 512, 4, 31.6),
        ("14b", 480, 832, 4, 20.05),
    ],
)
def test_streamdiffusion_on_four_h100_is_predicted_within_a_fifth(
    name: str, height: int, width: int, steps: int, published: float
) -> None:
    """Video to video, a layer pipeline with the VAE at its ends, all noise levels in a call, keys of the last
    one kept."""
    spec = MODELS[f"wan2.1-t2v-{name}"]
    stream = apply_schedule(replace(spec.stream, height=height, width=width), "streamdiffusion-v2")
    stream = replace(stream, steps=stream.steps[:steps])
    workload = Workload(
        spec=spec,
        stream=stream,
        software=SOFTWARE["reference"],
        commit=False,
        video_in=True,
        stream_batch=True,
    )
    assert fps(workload, "4xH100", "pp4") == pytest.approx(published, rel=0.2)


def test_decoding_twelve_frames_is_40_tflop_of_convolution() -> None:
    convs = decoder_convs(MODELS["wan2.1-t2v-14b"].vae, 3, 480, 832)
    assert sum(conv.flops for conv in convs) == pytest.approx(40.5e12, rel=0.01)
    assert sum(conv.flops for conv in convs if conv.inner == conv.outer == 96) == pytest.approx(
        14.3e12, rel=0.01
    )


def test_a_call_is_two_flops_per_weight_and_token_and_attention_on_top() -> None:
    dit = MODELS["wan2.1-t2v-14b"].dit
    weights = dit.layers * (6 * dit.width**2 + 2 * dit.width * dit.ffn)
    assert call_flops(dit, 2160, 0) - 4 * 2160 * 512 * dit.width * dit.layers == 2 * weights * 2160


def test_tensor_parallel_ranks_share_all_products_but_cross_attentions() -> None:
    dit = MODELS["wan2.1-t2v-14b"].dit
    whole, share = (sum(product.flops for product in block_products(dit, 2160, tp=tp)) for tp in (1, 4))
    cross = 2 * 2 * 2160 * dit.width**2
    assert 4 * (share - cross) == whole - cross


def test_an_all_reduce_of_a_chunk_over_nvlink_takes_what_is_known() -> None:
    assert all_reduce(2160 * 5120 * 2, 2, NVLINK4) == pytest.approx(0.113, rel=0.02)


@given(ranks=st.integers(2, 64), size=st.floats(1e6, 1e9))
def test_gathering_and_exchanging_cost_at_most_half_a_ring_all_reduce(ranks: int, size: float) -> None:
    swift = Link(name="no latency", alpha_us=0.0, beta_gb_s=100.0)
    ring = 2 * (ranks - 1) / ranks * size / 100.0 / 1e6
    assert all_gather(size, ranks, swift) == pytest.approx(ring / 2)
    assert all_to_all(size, ranks, swift) == pytest.approx(ring / 2)
    assert all_reduce(size, ranks, swift) <= ring * (1 + 1e-9)
    assert point_to_point(size, NETWORK) > point_to_point(size, NVLINK4)


@given(rows=st.integers(1, 20_000), columns=st.integers(1, 20_000))
def test_no_shape_reaches_more_than_the_peak(rows: int, columns: int) -> None:
    assert 0 < wave_share(rows, columns, 132) <= 1


@given(
    window=st.integers(3, 60),
    height=st.integers(4, 40),
    software=st.sampled_from(("fast", "compiled", "eager", "reference")),
)
def test_a_longer_window_a_larger_picture_and_a_slower_program_never_get_quicker(
    window: int, height: int, software: str
) -> None:
    def mesh_ms(kernels: str, rows: int, frames: int) -> float:
        workload = work("1.3b", 16 * rows, 832, frames, software=SOFTWARE[kernels])
        return chunk_time(workload, parse_fleet("H200"), Topology.parse("local")).mesh_ms

    here = mesh_ms(software, height, window) * (1 - 1e-9)
    assert mesh_ms(software, height, window + 1) >= here
    assert mesh_ms(software, 2 * height, window) >= here
    assert mesh_ms("reference", height, window) >= here
    assert mesh_ms("fast", height, window) * (1 - 1e-9) <= mesh_ms(software, height, window)


def test_the_engines_own_convolution_counts_where_it_runs() -> None:
    with_own, without = (
        work("1.3b", 480, 832, 9, software=software_of(speed))
        for speed in (ALL, replace(ALL, own_convolution=False))
    )
    assert decode_ms(with_own, find_device("H200")) < 0.8 * decode_ms(without, find_device("H200"))
    assert decode_ms(with_own, find_device("B200")) == decode_ms(without, find_device("B200"))


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("off", "eager"),
        ("on", "fast"),
        ("on,-graphs", "fast,-graphs"),
        ("on,paired_commits", "fast,paired_commits"),
        ("blocks,round_keys", "blocks,round_keys"),
    ],
)
def test_every_path_of_the_engine_has_a_name_and_says_where_its_numbers_come_from(
    said: str, name: str
) -> None:
    software = software_of(parse_speed(said))
    assert software.name == name
    assert "this engine" in software.source
    assert software.fast_blocks == ("blocks" in parse_speed(said).names)


def test_what_is_faster_is_predicted_faster_one_after_the_other() -> None:
    fast = "blocks,round_keys,even_waves"
    paths = ("off", "blocks", "blocks,round_keys", fast, f"{fast},decoder", "on,-graphs")
    periods = [
        chunk_time(
            work("1.3b", 480, 832, 9, software=software_of(parse_speed(said))), parse_fleet("H200"), LOCAL
        ).period_ms
        for said in paths
    ]
    assert periods == sorted(periods, reverse=True)
    assert len(set(periods)) == len(paths)


def test_on_a_mesh_fast_blocks_and_fp8_are_planned_as_on_one_device() -> None:
    plain = work("14b", 320, 576, 6)
    fast = replace(plain, software=SOFTWARE["fast"])
    times = [
        chunk_time(each, parse_fleet("2xH200"), Topology.parse("tp2"))
        for each in (plain, fast, replace(fast, precision="fp8"))
    ]
    periods = [each.period_ms for each in times]
    assert periods == sorted(periods, reverse=True)
    assert len({each.call.communication for each in times}) == 1, "sums are of the same activations"


def test_apart_the_period_is_the_slower_side_and_together_it_is_their_sum() -> None:
    workload = work("14b", 320, 576, 6, software=SOFTWARE["compiled"])
    fleet = parse_fleet("2xH200")
    apart, together = (chunk_time(workload, fleet, Topology.parse(name)) for name in ("front+1", "local"))
    assert apart.period_ms == pytest.approx(max(apart.front_ms, apart.mesh_ms + apart.transport_ms))
    assert together.period_ms == pytest.approx(together.front_ms + together.mesh_ms) == together.serialised_ms
    assert apart.serialised_ms > apart.period_ms


@pytest.mark.parametrize(
    ("gpus", "topology", "waits"),
    [("H200", "local", False), ("3xH200", "front+tp2", False), ("2xH200", "tp2", True)],
)
def test_a_first_frame_waits_for_a_commit_only_where_ranks_share_the_fronts_device(
    gpus: str, topology: str, waits: bool
) -> None:
    stream = work("1.3b", 480, 832, 9)
    layout = Topology.parse(topology)
    bare = replace(stream, commit=False)
    first, without = (chunk_time(each, parse_fleet(gpus), layout).first_frame_ms for each in (stream, bare))
    assert (first > without, first == without) == (waits, not waits)


def test_a_first_frame_waits_for_the_first_chunks_own_steps_and_a_rate_does_not() -> None:
    stream = replace(work("1.3b", 480, 832, 21).stream, steps=(1000,))
    own = replace(stream, first_steps=(1000, 750, 500, 250))
    spec = MODELS["wan2.1-t2v-1.3b"]
    found, plain, four = (
        chunk_time(Workload(spec=spec, stream=each), parse_fleet("H200"), LOCAL)
        for each in (own, stream, replace(stream, steps=own.opening_steps))
    )
    assert found.period_ms == plain.period_ms < four.period_ms
    assert plain.first_frame_ms < found.first_frame_ms == four.first_frame_ms


@given(st.sampled_from([1, 3, 4, 8]), st.sampled_from(["off", "latent"]))
def test_chunks_of_any_size_are_planned(frames: int, anchor: str) -> None:
    """Larger ones take longer and no longer a frame: a call's launches and its weights are shared."""
    base = work("1.3b", 480, 832, 24)
    times = []
    for each in (1, frames):
        stream = replace(base.stream, frames_per_chunk=each, anchor=anchor)
        planned = replace(base, stream=stream)
        assert planned.chunk_frames == 4 * each
        assert planned.rebuilds == (0 if anchor == "off" else -(-(24 - each) // each))
        times.append(chunk_time(planned, parse_fleet("H200"), LOCAL))
    one, several = times
    assert one.first_frame_ms <= several.first_frame_ms
    if anchor == "off":
        assert one.period_ms <= several.period_ms <= frames * one.period_ms


def test_a_layer_pipeline_gives_one_session_nothing_and_several_their_share() -> None:
    workload = work("14b", 320, 576, 6)
    fleet = parse_fleet("5xH200")
    one, four = (chunk_time(workload, fleet, Topology.parse(name)) for name in ("front+1", "front+pp4"))
    assert four.period_ms >= one.period_ms
    assert four.busy_ms == pytest.approx(one.mesh_ms / 4, rel=0.05)


def test_an_anchored_window_is_paid_for_before_every_chunk() -> None:
    workload = work("1.3b", 480, 832, 21)
    anchored = replace(workload, stream=replace(workload.stream, anchor="latent"))
    assert workload.calls == 5
    assert anchored.calls == 6 + 4
    assert StreamConfig().anchor == "off"


def test_tokens_that_do_not_divide_are_filled_up_as_the_engine_does() -> None:
    workload = work("14b", 480, 832, 6)
    assert workload.rank_tokens(LOCAL) == workload.chunk_tokens == 3 * 1560
    assert workload.rank_tokens(Topology.parse("sp8")) == 3 * 195
    uneven = work("14b", 464, 832, 6)
    assert uneven.rank_tokens(Topology.parse("sp8")) == 3 * 189 > uneven.chunk_tokens / 8
    assert "sp8" in {
        str(plan.layout) for plan in search(PlanAsk(work=uneven, fleet=parse_fleet("8xH200"))).plans
    }
