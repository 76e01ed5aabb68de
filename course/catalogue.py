"""List of the chapters and what is in them. Loads no torch and no chapter."""

from __future__ import annotations

from course.chapter import Chapter
from course.tracks import BESIDE, TRACKS
from millstream.core.errors import CourseError

PARTS = {1: "the language", 2: "parallelism", 3: "inference", 4: "learning from reward", **TRACKS}


def heading(part: int) -> str:
    """Return the heading of a part, shown above its chapters."""
    return PARTS[part] if part in TRACKS else f"Part {part}: {PARTS[part]}"


CHAPTERS = (
    Chapter(
        number=1,
        part=1,
        name="first_program",
        title="Your first distributed program",
        minutes=30,
        scripts=("verify_setup", "hello_distributed", "port_in_use", "missing_rank"),
    ),
    Chapter(
        number=2,
        part=1,
        name="point_to_point",
        title="Point to point",
        minutes=45,
        scripts=("send_recv_basic", "deadlock", "three_cures", "pipeline_simulation", "async_communication"),
    ),
    Chapter(
        number=3,
        part=1,
        name="collectives",
        title="Collectives",
        minutes=60,
        scripts=(
            "cheat_sheet",
            "distributed_mean",
            "distributed_softmax",
            "ring_all_reduce",
            "when_ready",
            "wrong_group",
            "desynchronised_rank",
        ),
    ),
    Chapter(
        number=4,
        part=1,
        name="physics",
        title="The physics of communication",
        minutes=60,
        scripts=("topology_inspector", "links", "alpha_beta", "saturation", "ring_against_tree", "straggler"),
    ),
    Chapter(
        number=5,
        part=2,
        name="data_parallel",
        title="Data parallel",
        minutes=60,
        scripts=("ddp_from_scratch", "bucketing", "overlap_trace", "samplers", "unused_parameters"),
    ),
    Chapter(
        number=6,
        part=2,
        name="tensor_parallel",
        title="Tensor parallel",
        minutes=60,
        scripts=(
            "column_and_row",
            "tensor_mlp",
            "tensor_block",
            "sequence_norms",
            "what_it_costs",
            "bias_too_often",
        ),
    ),
    Chapter(
        number=7,
        part=2,
        name="pipeline_parallel",
        title="Pipeline parallel",
        minutes=60,
        scripts=("schedules", "activations_held", "strategy_calculator", "experts", "uneven_stages"),
    ),
    Chapter(
        number=8,
        part=3,
        name="life_of_a_request",
        title="Life of a request",
        minutes=60,
        scripts=("train_tiny_lm", "one_request", "minimal_server", "batching", "our_server", "head_of_line"),
    ),
    Chapter(
        number=9,
        part=3,
        name="kv_cache",
        title="The key/value cache",
        minutes=60,
        scripts=("cache_or_not", "kv_calculator", "paging", "prefix_sharing", "forks", "overwritten_page"),
    ),
    Chapter(
        number=10,
        part=3,
        name="cpu_overhead",
        title="CPU overhead",
        minutes=45,
        scripts=("operators", "launches", "cuda_graphs", "scheduling", "hidden_read"),
    ),
    Chapter(
        number=11,
        part=3,
        name="speculation",
        title="Speculation and constraint",
        minutes=60,
        scripts=("same_distribution", "how_many_ahead", "json_decoding", "stream_ahead", "biased"),
    ),
    Chapter(
        number=12,
        part=4,
        name="ppo",
        title="PPO that learns",
        minutes=60,
        scripts=("four_steps", "gae_drawn", "clipping", "stale_densities"),
    ),
    Chapter(
        number=13,
        part=4,
        name="four_models",
        title="Four models",
        minutes=75,
        scripts=("preferences", "one_step", "learning_to_please", "reward_calculator", "on_brook", "hacking"),
    ),
    Chapter(
        number=14,
        part=4,
        name="rl_system",
        title="The system",
        minutes=60,
        scripts=("memory_timeline", "placements", "two_ranks", "weight_update", "half_updated"),
    ),
    *BESIDE,
)


def find_chapter(key: str | int) -> Chapter:
    """Find a chapter by its key, also in the form that files have: `06`."""
    asked = str(key).lower().lstrip("0")
    for chapter in CHAPTERS:
        if chapter.key.lower() == asked:
            return chapter
    raise CourseError(f"there is no chapter {key}; there are {', '.join(each.key for each in CHAPTERS)}")
