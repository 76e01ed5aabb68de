"""What events are: by their names, and by evidence where names do not say. Names as public traces have
them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millstream.planner.hardware import DEVICES
from millstream.profiler.anatomy import take_apart
from millstream.profiler.costs import op_cost
from millstream.profiler.event import mended
from millstream.profiler.kinds import Kind, family_of, kind_of
from millstream.profiler.reading import Reading, read
from millstream.profiler.reading_page import COLOUR_OF, SAID, html_report
from millstream.profiler.trace import read_trace


def event(cat: str, name: str, begin: float, length: float, track: int = 1, **args: Any) -> dict[str, Any]:
    pid = 0 if cat in ("kernel", "gpu_memcpy") else 1
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": begin,
        "dur": length,
        "pid": pid,
        "tid": track,
        "args": args,
    }


def written(folder: Path, events: list[dict[str, Any]], device: str = "NVIDIA H200") -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"deviceProperties": [{"name": device}], "traceEvents": events}))
    return path


def launched(
    name: str, begin: float, length: float, link: int, *, after: float = 5.0, **args: Any
) -> list[dict[str, Any]]:
    return [
        event("cuda_runtime", "cudaLaunchKernel", begin, 4.0, correlation=link),
        event("kernel", name, begin + after, length, 7, correlation=link, **args),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "void dpsk::ep::internode::combine<false, 8, __nv_bfloat16>(int4*)",
        "void deep_ep::intranode::dispatch<8, 768>(int4*)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "void sglang::custom_allreduce::twoshot_all_reduce<4>()",
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
    ],
)
def test_kernels_that_talk_are_communication(name: str) -> None:
    assert kind_of("kernel", name) is Kind.COLLECTIVE


@pytest.mark.parametrize(
    "name", ["hipMemcpyWithStream", "hipMemcpy", "cudaMemcpy", "cudaMemcpy_v3020", "hipMemcpyDtoH"]
)
def test_copies_that_block_make_the_host_wait(name: str) -> None:
    assert kind_of("cuda_runtime", name) is Kind.SYNC
    assert kind_of("cuda_runtime", "cudaMemcpyAsync") is Kind.LAUNCH
    assert kind_of("cuda_runtime", "hipMemcpy2DAsync") is Kind.LAUNCH


def test_a_copy_that_returns_when_it_is_done_has_blocked_whatever_it_is_called(tmp_path: Path) -> None:
    blocking = [
        *launched("gemm", 0.0, 900.0, 1),
        event("cuda_runtime", "cudaMemcpyAsync", 10.0, 930.0, correlation=2),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 910.0, 20.0, 7, correlation=2),
    ]
    assert take_apart(read_trace(written(tmp_path, blocking))).waiting.total == 930.0
    blocking[2]["dur"] = 6.0
    assert take_apart(read_trace(written(tmp_path, blocking))).waiting.total == 0.0


def test_send_and_receive_under_all_to_all_is_communication_and_no_bubble(tmp_path: Path) -> None:
    kernel = launched("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", 0.0, 900.0, 1)
    named = [*kernel, event("user_annotation", "nccl:all_to_all", 0.0, 5.0)]
    verdict = read([written(tmp_path, named)]).diagnosis.verdict
    assert verdict.name == "communication-bound", verdict
    pipeline = [*kernel, event("user_annotation", "nccl:recv 0<-1", 0.0, 5.0)]
    assert len(read_trace(written(tmp_path, pipeline)).events.of(Kind.EXCHANGE))
    kernel[1]["args"]["Collective name"] = "all_to_allv"
    assert len(read_trace(written(tmp_path, pipeline)).events.of(Kind.COLLECTIVE)) == 1


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1", "product"),
        ("attn_fwd", "attention"),
        ("kernel_unified_attention_2d", "attention"),
        ("void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16>", "attention"),
        ("triton_poi_fused__to_copy_convolution_1", "between products"),
        ("triton_red_fused_addmm_native_layer_norm_3", "between products"),
        ("triton_tem_fused_mm_4", "product"),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", "cache write"),
        ("void at::native::direct_copy_kernel_cuda", "cast or copy"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
            "between products",
        ),
        ("implicit_convolve_sgemm", "convolution"),
    ],
)
def test_kernels_are_told_apart_by_their_names(name: str, family: str) -> None:
    assert family_of(name) == family


def product(folder: Path, kernel: str, *, length: float, rows: int) -> Reading:
    shapes: dict[str, Any] = {
        "external id": 1,
        "Input Dims": [[rows, 4096], [4096, 4096]],
        "Input type": ["c10::BFloat16"] * 2,
    }
    op = event("cpu_op", "aten::mm", 0.0, 10.0, **shapes)
    return read([written(folder, [op, *launched(kernel, 1.0, length, 1, **{"external id": 1})])])


def test_a_kernel_whose_name_says_nothing_is_what_its_operator_is_and_older_traces_tie_them_too(
    tmp_path: Path,
) -> None:
    (family,) = product(tmp_path, "kernel_12345", length=250.0, rows=4096).roofs[0].families
    assert (family.family, family.known_share) == ("product", 1.0)
    assert family.tflops == pytest.approx(2 * 4096**3 / 250e6)


def test_a_cast_within_an_operator_does_none_of_its_arithmetic(tmp_path: Path) -> None:
    dims = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2, "External id": 3}
    operator = event("cpu_op", "aten::mm", 0, 30, **dims)
    kernels = [
        *launched("void convert_layout(float*)", 1, 100, 1, **{"External id": 3}),
        *launched("nvjet_sm90_tst", 120, 300, 2, **{"External id": 3}),
    ]
    families = {
        each.family: each for each in read([written(tmp_path, [operator, *kernels])]).roofs[0].families
    }
    assert families["cast or copy"].flops == 0
    assert families["product"].flops == 2 * 4096**3


def test_work_that_no_card_could_do_in_the_time_is_not_known(tmp_path: Path) -> None:
    """A million GB/s is not a bandwidth: the operator did not do what its shapes say."""
    (roof,) = product(tmp_path, "kernel_12345", length=2.0, rows=400_000).roofs
    assert roof.shaped_ms == 0
    assert roof.families[0].gb_s == 0


def flops_of(name: str, args: dict[str, Any]) -> float:
    return op_cost(name, mended({"args": args}).args)[0]


def test_attention_is_counted_along_the_axis_that_has_the_tokens() -> None:
    heads_first: dict[str, Any] = {"Input Dims": [[2, 16, 1000, 64]] * 3, "Input type": ["c10::BFloat16"] * 3}
    tokens_first: dict[str, Any] = {
        "Input Dims": [[2, 1000, 16, 64]] * 3,
        "Input type": ["c10::BFloat16"] * 3,
    }
    flops = 4.0 * 2 * 16 * 1000 * 1000 * 64
    assert flops_of("aten::_scaled_dot_product_flash_attention", heads_first) == flops
    assert flops_of("aten::_flash_attention_forward", tokens_first) == flops
    assert flops_of("aten::_efficient_attention_forward", tokens_first) == flops
    causal = {**heads_first, "Concrete Inputs": ["", "", "", "0.", "True", "False", ""]}
    assert flops_of("aten::_scaled_dot_product_flash_attention", causal) == flops / 2
    backward = {"Input Dims": [[2, 1000, 16, 64]] * 6, "Input type": ["c10::BFloat16"] * 6}
    assert flops_of("aten::_flash_attention_backward", backward) == 2.5 * flops


def doubts(folder: Path, events: list[dict[str, Any]]) -> str:
    diagnosis = read([written(folder, events)], device=DEVICES["h200"]).diagnosis
    assert diagnosis.verdict.confidence != "high" or diagnosis.verdict.name == "trace not to be trusted"
    return " ".join((*diagnosis.doubts, *diagnosis.verdict.evidence))


def test_devices_that_are_not_known_by_name_are_read_and_said(tmp_path: Path) -> None:
    events = [
        event("mtia_ccp_events", "fc-dtype_Float", 100.0 * n, 90.0, 7, correlation=n) for n in range(30)
    ]
    calls = [
        event("mtia_runtime", "runFunction - submit", 100.0 * n - 9, 5.0, correlation=n) for n in range(30)
    ]
    assert "mtia_ccp_events, mtia_runtime are not known by name" in doubts(tmp_path, events + calls)


def test_a_device_that_is_called_and_not_seen_is_said(tmp_path: Path) -> None:
    events = [
        event("cpu_op", "aten::addmm", 0.0, 900.0),
        event("cuda_runtime", "cudaDeviceSynchronize", 900.0, 60.0),
    ]
    assert "nothing of it is in the trace" in doubts(tmp_path, events)


def test_first_launches_within_the_trace_are_said(tmp_path: Path) -> None:
    events = [step for n in range(20) for step in launched("gemm", 6000.0 * n, 500.0, n, after=5000.0)]
    for call in events[::2]:
        call["dur"] = 4990.0
    assert "first calls" in doubts(tmp_path, events)


def starts(folder: Path, name: str, length: float) -> Reading:
    """2 ms in which nothing is called, a call, and twenty products that are launched ahead."""
    products = [step for n in range(20) for step in launched("gemm", 2000.0 + length + 900.0 * n, 850.0, n)]
    call = event("cuda_runtime", name, 2000.0, length)
    return read([written(folder, [event("user_annotation", "main", 0.0, 9.0), call, *products])])


@pytest.mark.parametrize("name", ["cudaMallocManaged", "cudaFree", "cuMemHostAlloc_v2"])
def test_a_slow_call_before_the_device_is_first_seen_makes_its_context(tmp_path: Path, name: str) -> None:
    verdict = starts(tmp_path, name, 60_000.0).diagnosis.verdict
    assert (verdict.name, verdict.confidence) == ("warm-up", "medium"), (
        "and is not the allocator's, whatever it asks for"
    )
    assert verdict.gain == pytest.approx(62 / 80, abs=0.01), "with what was before it"


def test_memory_that_is_asked_for_in_a_moment_or_later_is_the_allocators(tmp_path: Path) -> None:
    (rank,) = starts(tmp_path, "cudaMalloc", 4000.0).group.ranks
    assert rank.shares["allocator"] == pytest.approx(4 / 24, abs=0.01)
    assert rank.shares["warm-up"] == 0


def test_without_an_event_of_the_device_a_single_launch_is_enough_to_know_that_it_is_missing(
    tmp_path: Path,
) -> None:
    events = [
        event("cuda_runtime", "cudaMalloc", 0.0, 900.0),
        event("cuda_runtime", "cudaLaunchKernel", 950.0, 9.0, correlation=1),
    ]
    assert "100% of 1 launches have nothing on the device" in doubts(tmp_path, events)
    assert "neither its work nor any operator is in the trace" in doubts(tmp_path, events[:1])


def test_captured_graphs_are_said(tmp_path: Path) -> None:
    events = [step for n in range(20) for step in launched("gemm", 600.0 * n, 500.0, n)]
    events.append(event("cuda_runtime", "cudaStreamBeginCapture", 1.0, 1.0))
    assert "graphs are captured" in doubts(tmp_path, events)


def with_stacks(folder: Path, frame: str) -> Reading:
    """Ten kernels with 5 ms of a Python frame before each."""
    events = [step for n in range(10) for step in launched("gemm", 6000.0 * n + 5000.0, 900.0, n)]
    stacks = [event("python_function", "train.py(1): main", 0.0, 60_000.0)]
    stacks += [event("python_function", frame, 6000.0 * n + 10.0, 4900.0) for n in range(10)]
    return read([written(folder, events + stacks)])


def test_it_is_said_what_the_host_did_in_the_largest_gaps(tmp_path: Path) -> None:
    found = with_stacks(tmp_path, "sampler.py(40): choose")
    (gap,) = found.host_gaps[0]
    assert (gap.what, gap.gaps) == ("sampler.py(40): choose", 9), "the first is before anything that is timed"
    assert gap.ms == pytest.approx(46.0, rel=0.03)
    assert found.diagnosis.verdict.name == "CPU-bound"


def test_slow_preparation_of_input_is_told_from_waiting_for_a_loader(tmp_path: Path) -> None:
    prepared = with_stacks(tmp_path, "image_processing_videomae.py(217): normalize").diagnosis.verdict
    assert prepared.name == "data- or encode-bound"
    assert "nobody is waited for" in prepared.evidence[1]
    waits = [step for n in range(10) for step in launched("gemm", 6000.0 * n + 5000.0, 900.0, n)]
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    waits += [event("user_annotation", name, 6000.0 * n + 10.0, 4900.0) for n in range(10)]
    waited = read([written(tmp_path, waits)]).diagnosis.verdict
    assert waited.name == "data- or encode-bound"
    assert "waits for the data loader's workers" in waited.evidence[1]


def test_the_longest_kernels_are_told_by_name_with_what_they_reach(tmp_path: Path) -> None:
    (kernel,) = product(tmp_path, "void at::native::kernel_12345", length=250.0, rows=4096).roofs[0].top
    assert (kernel.short, kernel.calls, kernel.ms, kernel.share) == ("kernel_12345", 1, 0.25, 1.0)
    assert kernel.reached == pytest.approx(kernel.tflops / DEVICES["h200"].rates.matmul_tflops)


def test_a_verdict_is_red_when_much_is_lost_and_a_cause_has_one_colour(tmp_path: Path) -> None:
    bad = html_report(with_stacks(tmp_path, "sampler.py(40): choose"))
    assert "class='verdict no'" in bad
    assert "sampler.py(40): choose" in bad
    assert set(SAID) == {*with_stacks(tmp_path, "f").group.ranks[0].shares}, "every cause has words"
    assert all(said in COLOUR_OF for said in SAID.values()), "and a colour"
    good = html_report(product(tmp_path, "kernel_12345", length=200.0, rows=4096))
    assert "class='verdict'" in good
