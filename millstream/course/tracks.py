"""What lies beside the numbered chapters: labs, the failure lab, the video track."""

from __future__ import annotations

from millstream.course.chapter import FAILURES, LABS, VIDEO, Chapter

TRACKS = {LABS: "Labs", FAILURES: "Failure lab", VIDEO: "Video track"}
BESIDE = (
    Chapter(
        number=1,
        part=LABS,
        name="lab_processes",
        title="Several processes, or several GPUs",
        minutes=45,
        scripts=("before_and_after",),
    ),
    Chapter(
        number=2,
        part=LABS,
        name="lab_ddp",
        title="DDP from scratch, against torch's",
        minutes=90,
        scripts=("before_and_after",),
    ),
    Chapter(
        number=3,
        part=LABS,
        name="lab_fsdp",
        title="FSDP: wrap policies, sharding strategies, state dicts",
        minutes=90,
        scripts=("before_and_after",),
    ),
    Chapter(
        number=4,
        part=LABS,
        name="lab_precision",
        title="Mixed precision",
        minutes=75,
        scripts=("which_ops", "before_and_after"),
    ),
    Chapter(
        number=5,
        part=LABS,
        name="lab_deepspeed",
        title="DeepSpeed: stages 1 to 3, offload, and the same run in our trainer",
        minutes=75,
        scripts=("before_and_after", "deepspeed_stages"),
    ),
    Chapter(
        number=1,
        part=FAILURES,
        name="failures",
        title="Ten failures, and what finds them",
        minutes=60,
        scripts=(
            "deadlock",
            "wrong_group",
            "desynchronised_rank",
            "wrong_device",
            "straggler",
            "hidden_synchronisation",
            "data_bound_input",
            "graph_break",
            "fragmentation",
            "nan_in_fp16",
        ),
        borrowed={
            "deadlock": "point_to_point",
            "wrong_group": "collectives",
            "desynchronised_rank": "collectives",
            "straggler": "physics",
        },
    ),
    Chapter(
        number=1,
        part=VIDEO,
        name="video_latents",
        title="Latents and a causal VAE",
        minutes=40,
        scripts=("latents", "causal_tails", "forgotten_tail"),
    ),
    Chapter(
        number=2,
        part=VIDEO,
        name="video_mask",
        title="From a block-causal mask to a ring",
        minutes=45,
        scripts=("mask_to_pieces", "ring_equals_mask", "window_bytes", "future_leak"),
    ),
    Chapter(
        number=3,
        part=VIDEO,
        name="video_few_steps",
        title="Few steps, and learning from one's own stream",
        minutes=50,
        scripts=("many_steps_few_steps", "student_of_a_path", "brook_steps", "exposure_bias"),
    ),
    Chapter(
        number=4,
        part=VIDEO,
        name="video_overlap",
        title="One chunk through front and mesh",
        minutes=45,
        scripts=("one_chunk", "overlap_arithmetic", "front_and_mesh", "a_prompt_every_chunk"),
    ),
    Chapter(
        number=5,
        part=VIDEO,
        name="video_promises",
        title="Serving many, with promises",
        minutes=45,
        scripts=("how_many_fit", "earliest_deadline", "brook_viewers", "everyone_is_let_in"),
    ),
)
