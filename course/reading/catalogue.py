"""List of the papers and documents of the map: their layers and addresses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "papers"
LAYERS = {
    "architecture": "Architecture: how a model is cut over devices, and why it may be cut there",
    "memory": "Memory: what a device holds, and what it does not have to",
    "communication": "Communication: what travels, how often, and what it waits for",
    "execution": "GPU execution: what a card does while a kernel runs",
    "profiling": "Profiling: what was reached of what is possible, and where the rest went",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    name: str
    """Name of its page, and of its questions in the quiz."""
    layer: str
    title: str
    year: int
    url: str
    chapters: tuple[str, ...]
    """Chapters of the course that it belongs to."""

    @property
    def page(self) -> Path:
        return FOLDER / f"{self.name}.md"


def _paper(layer: str, name: str, year: int, where: str, title: str, *chapters: str) -> Paper:
    url = where if where.startswith("https://") else f"https://arxiv.org/abs/{where}"
    return Paper(name=name, layer=layer, title=title, year=year, url=url, chapters=chapters)


_DP = "data_parallel"
_TP = "tensor_parallel"
_PP = "pipeline_parallel"
_STEPS = "video_few_steps"
PAPERS = (
    _paper("architecture", "megatron", 2019, "1909.08053", "Megatron-LM: tensor parallelism", _TP),
    _paper(
        "architecture",
        "megatron_clusters",
        2021,
        "2104.04473",
        "Megatron-LM on clusters: three ways at once",
        _TP,
        _PP,
    ),
    _paper(
        "architecture",
        "sequence_parallel",
        2022,
        "2205.05198",
        "Sequence parallelism and selective recomputing",
        _TP,
    ),
    _paper("architecture", "gpipe", 2018, "1811.06965", "GPipe: micro-batches", _PP, "point_to_point"),
    _paper("architecture", "pipedream", 2018, "1806.03377", "PipeDream: one forward, one backward", _PP),
    _paper(
        "architecture", "causvid", 2024, "2412.07772", "CausVid: from clips to streams", "video_mask", _STEPS
    ),
    _paper(
        "architecture",
        "self_forcing",
        2025,
        "2506.08009",
        "Self Forcing: learning from one's own stream",
        _STEPS,
    ),
    _paper(
        "architecture",
        "rolling_forcing",
        2025,
        "2509.25161",
        "Rolling Forcing: long streams, noise in steps",
        _STEPS,
    ),
    _paper("memory", "zero", 2019, "1910.02054", "ZeRO: state without copies", _DP),
    _paper(
        "memory", "zero_infinity", 2021, "2104.07857", "ZeRO-Infinity: host memory and disks", _DP, "physics"
    ),
    _paper("memory", "fsdp", 2023, "2304.11277", "PyTorch FSDP", _DP, "lab_fsdp"),
    _paper("memory", "mixed_precision", 2017, "1710.03740", "Mixed precision training", "lab_precision"),
    _paper(
        "memory",
        "paged_attention",
        2023,
        "2309.06180",
        "PagedAttention: keys and values in pages",
        "kv_cache",
    ),
    _paper("communication", "ddp", 2020, "2006.15704", "PyTorch DDP", _DP, "lab_ddp"),
    _paper(
        "communication",
        "ring",
        2009,
        "https://doi.org/10.1016/j.jpdc.2008.09.002",
        "Bandwidth-optimal all-reduce",
        "collectives",
    ),
    _paper(
        "communication",
        "nccl",
        2024,
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/index.html",
        "NCCL's guide",
        "collectives",
        "physics",
    ),
    _paper(
        "execution", "flash_attention", 2022, "2205.14135", "FlashAttention: exact, without the square", _TP
    ),
    _paper("execution", "flash_attention_2", 2023, "2307.08691", "FlashAttention 2: enough blocks", _TP),
    _paper(
        "execution", "flash_attention_3", 2024, "2407.08608", "FlashAttention 3: what Hopper waits for", _TP
    ),
    _paper(
        "profiling",
        "roofline",
        2009,
        "https://doi.org/10.1145/1498765.1498785",
        "The roofline model",
        "physics",
    ),
    _paper(
        "profiling", "palm_utilisation", 2022, "2204.02311", "PaLM, appendix B: model FLOPs utilisation", _DP
    ),
    _paper(
        "profiling",
        "torch_profiler",
        2024,
        "https://docs.pytorch.org/docs/stable/profiler.html",
        "PyTorch's profiler",
        _DP,
        "physics",
    ),
)
