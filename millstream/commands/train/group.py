"""`millstream train`: how its options are spelled. Loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from millstream.commands.options import Device, Overwrite, Weights, parse_numbers, with_options
from millstream.core.config import parse_size
from millstream.core.errors import ConfigError


class RecipeGroup(TyperGroup):
    """`train RECIPE`: what is no command is a recipe."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        is_recipe = args[0] not in self.commands and not args[0].startswith("-")
        return super().resolve_command(ctx, ["recipe", *args] if is_recipe else args)


train = typer.Typer(
    name="train",
    cls=RecipeGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Teach a model from your videos ([bold]millstream train RECIPE.toml[/]), or train the small one "
    "from nothing.",
)
data = typer.Typer(
    name="data", no_args_is_help=True, help="What to learn from: your videos, or the small model's world."
)
train.add_typer(data)


@train.command()
@with_options
def recipe(
    path: Annotated[
        Path, typer.Argument(metavar="RECIPE", help="TOML: model, data, steps, and how ranks share the work.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder of the run; one that was begun goes on. By default named as the recipe is.",
        ),
    ] = None,
    deepspeed: Annotated[
        Path | None,
        typer.Option(
            help="A configuration of DeepSpeed, whose engine then trains (an extra).", show_default=False
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the recipe, print what it would do.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Fine-tune a model, whole or as a LoRA. The word [bold]recipe[/] can be left out: millstream train
    RECIPE.toml

    On several GPUs: torchrun --nproc-per-node 4 -m millstream train RECIPE.toml. Stop it when you like
    (Ctrl-C or SIGTERM): the same command goes on from the last checkpoint.
    """
    from millstream.commands.train.tune import run_tuning

    written = run_tuning(path, out=out, device=device, dry_run=dry_run, deepspeed=deepspeed)
    if written is not None:
        typer.echo(written)


@train.command()
@with_options
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN RUN", help="Folders that `millstream train RECIPE` left.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("compare.html"),
) -> None:
    """Curves, speed and memory of runs side by side, in one HTML file."""
    from millstream.commands.train.compare import compare as run

    for line in run(runs, out):
        typer.echo(line)
    typer.echo(out)


@train.command()
@with_options
def translate(
    config: Annotated[Path, typer.Argument(metavar="DS_CONFIG", help="A DeepSpeed configuration, JSON.")],
    ranks: Annotated[int, typer.Option(help="GPUs it runs on.", min=1)] = 1,
) -> None:
    """Print a DeepSpeed configuration as a recipe, and what of it has no counterpart."""
    from millstream.train.finetune.translate import read_deepspeed
    from millstream.train.finetune.translate import translate as run

    for line in run(read_deepspeed(config), ranks).lines():
        typer.echo(line)


@data.command()
@with_options
def prepare(
    source: Annotated[
        Path, typer.Argument(metavar="VIDEOS", help="A folder with captions beside its videos, or a list.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the dataset; one that was begun goes on.")
    ] = Path("out/clips"),
    model: Annotated[str, typer.Option(help="Who is to learn from it.")] = "brook",
    weights: Weights = None,
    sizes: Annotated[
        str,
        typer.Option(
            help="HEIGHTxWIDTH,... or auto: each video takes the one nearest to its shape. The model's own "
            "by default.",
            show_default=False,
        ),
    ] = "",
    frames: Annotated[int, typer.Option(help="Latent frames of a clip: 4 pictures each, the first 1.")] = 9,
    clips: Annotated[int, typer.Option(help="Clips of a video, at most, from its beginning.")] = 1,
    stride: Annotated[
        float,
        typer.Option(
            help="Seconds from the beginning of a clip to that of the next; 0: one after the other."
        ),
    ] = 0.0,
    motion: Annotated[
        float, typer.Option(help="Leave out clips that change less, in levels of 255 a second; try 2.")
    ] = 0.0,
    brightness: Annotated[
        float, typer.Option(help="Leave out darker clips, in levels of 255; try 10.")
    ] = 0.0,
    across_cuts: Annotated[bool, typer.Option("--across-cuts", help="Let clips have cuts in them.")] = False,
    actions: Annotated[
        str,
        typer.Option(
            help="Keys to keep, as a,d,s,w,look, from VIDEO.actions.csv or .actions.jsonl beside each video. "
            "Those that the model takes by default.",
            show_default=False,
        ),
    ] = "",
    part: Annotated[str, typer.Option(help="K/N: one of N processes that share the work.")] = "1/1",
    device: Device = "auto",
) -> None:
    """Videos and their captions to what training reads. What cannot be used is listed in skipped.txt and left
    out."""
    from millstream.commands.train.prepare import PrepareRequest, run_prepare

    request = PrepareRequest(
        source=source,
        out=out,
        model=model,
        weights=tuple(weights or ()),
        sizes=sizes,
        latent_frames=frames,
        clips=clips,
        stride_s=stride,
        least_motion=motion,
        least_brightness=brightness,
        across_cuts=across_cuts,
        actions=actions,
        part=parse_part(part),
        device=device,
    )
    typer.echo(run_prepare(request))


@data.command()
@with_options
def world(
    preview: Annotated[
        bool, typer.Option("--preview", help="Write a contact sheet, a clip and captions.")
    ] = False,
    videos: Annotated[
        bool,
        typer.Option("--videos", help="Write each scene as a video with its caption: what prepare reads."),
    ] = False,
    walk: Annotated[
        bool,
        typer.Option(
            "--walk",
            help="Walk through the world in three dimensions; beside each video of --videos, its actions.",
        ),
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")] = Path("out/data"),
    seed: Annotated[int, typer.Option(help="Which scenes.")] = 0,
    count: Annotated[int, typer.Option(help="How many scenes.")] = 8,
    seconds: Annotated[float, typer.Option(help="Length of a clip.")] = 4.0,
    size: Annotated[str, typer.Option(help="HEIGHTxWIDTH of a scene, multiples of 16.")] = "256x256",
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Only combinations that training never sees.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """The painted world that the small model learns: what is in it, with --preview how it looks, with
    --videos as data. With --walk, the same things in a land that one walks through."""
    from millstream.commands.train.preview_request import PreviewRequest
    from millstream.commands.train.world import preview as run
    from millstream.commands.train.world import print_summary

    if preview and videos:
        raise ConfigError("--preview or --videos, not both")
    if not preview and not videos:
        print_summary(walk=walk)
        return
    request = PreviewRequest(
        out=out,
        seed=seed,
        count=count,
        seconds=seconds,
        size=parse_size(size),
        held_out=held_out,
        overwrite=overwrite,
        videos=videos,
        walk=walk,
    )
    written = run(request)
    if videos:
        beside = "captions and actions" if walk else "captions"
        typer.echo(f"{out}: {count} videos with {beside}; next: millstream train data prepare {out}")
        return
    for path in written:
        typer.echo(path)


@train.command()
@with_options
def brook(
    recipe: Annotated[
        Path | None, typer.Option(help="Another run than the one that ships, TOML.", show_default=False)
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Every stage in miniature, under two minutes on a CPU.")
    ] = False,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the run; one that was begun goes on.")
    ] = Path("out/brook"),
    until: Annotated[str | None, typer.Option(help="Stop after this stage.", show_default=False)] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Change the recipe: pool.walks=500, stages.teacher.steps=100. Repeat it; the same for a run "
            "that goes on.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the stages and what they hold in memory.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Train Brook from nothing: VAE, teacher, few-step student, self-forcing, and the classifier that judges
    it.

    Leaves brook.safetensors and classifier.safetensors in the run's folder. Interrupt it when you like: the
    same command goes on from the last checkpoint, to the same bits. On several GPUs: torchrun
    --nproc-per-node 4 -m millstream train brook
    """
    from millstream.commands.train.brook import run_train_brook

    run_train_brook(
        recipe=recipe,
        smoke=smoke,
        out=out,
        device=device,
        until=until,
        dry_run=dry_run,
        changes=changes or (),
    )


@train.command()
@with_options
def decoder(
    weights: Annotated[
        str, typer.Option("--weights", "-w", help="The model: bundled, or a file.")
    ] = "bundled",
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the run; one that was begun goes on.")
    ] = Path("out/decoder"),
    streams: Annotated[int, typer.Option(help="Streams whose pictures it learns.")] = 512,
    steps: Annotated[int, typer.Option(help="Of training.")] = 10000,
    batch: Annotated[int, typer.Option(help="Crops a step.")] = 64,
    device: Device = "auto",
) -> None:
    """Distil the thin decoder that CPUs show a Brook with. For a GPU: minutes. Leaves
    brook.decoder.safetensors."""
    from millstream.commands.train.decoder import run_train_decoder

    written = run_train_decoder(weights, out, streams=streams, steps=steps, batch=batch, device=device)
    if written is not None:
        typer.echo(written)


@train.command()
@with_options
def ranges(
    weights: Annotated[str, typer.Option("--weights", "-w", help="The file of a Brook of your own.")],
    count: Annotated[int, typer.Option(help="Streams to watch.")] = 64,
    device: Device = "auto",
) -> None:
    """Measure what a CPU needs to multiply a Brook in 8 bits, and keep it beside the weights:
    model.int8.json."""
    from millstream.commands.train.ranges import run_train_ranges

    typer.echo(run_train_ranges(weights, count=count, device=device))


@train.command()
@with_options
def judge(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the run; one that was begun goes on.")
    ] = Path("out/judge"),
    clips: Annotated[int, typer.Option(help="Renders it learns from.")] = 12000,
    steps: Annotated[int, typer.Option(help="Of training.")] = 6000,
    batch: Annotated[int, typer.Option(help="Clips a step.")] = 64,
    seed: Annotated[int, typer.Option(help="Of its scenes and weights.")] = 7_654_321,
    size: Annotated[int, typer.Option(help="Of its renders, in pixels.")] = 192,
    architecture: Annotated[
        str,
        typer.Option(
            help="held back, or convolutions: another classifier to reward by, as the bundled one is."
        ),
    ] = "held back",
    device: Device = "auto",
) -> None:
    """Train the held-back judge, which says whether tuning by reward made a Brook better. Leaves
    judge.safetensors.

    It has another architecture, another seed and other renders than the classifier that rewards. For a GPU:
    minutes.
    """
    from millstream.commands.train.judge import run_train_judge
    from millstream.train.evaluate.held_back import JudgeTraining

    sizes = {"clips": clips, "steps": steps, "batch": batch, "size": size, "examined": min(256, clips)}
    plan = JudgeTraining(**sizes, seed=seed, architecture=architecture)
    written = run_train_judge(out, plan, device=device)
    if written is not None:
        typer.echo(written)


@train.command(name="eval")
@with_options
def evaluate(
    weights: Annotated[
        str, typer.Option("--weights", "-w", help="The model to judge: bundled, or a file.")
    ] = "bundled",
    classifier: Annotated[
        Path | None,
        typer.Option(help="The judge, if not the one that comes with the package.", show_default=False),
    ] = None,
    motion: Annotated[
        Path | None,
        typer.Option(
            help="Walk by keys too, and read the motion by this judge: motion.safetensors of a run.",
            show_default=False,
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="Prompts of each kind, seen and held out.")] = 16,
    seconds: Annotated[
        str, typer.Option(help="Moments at which streams are judged: 2,10,30,120 shows drift.")
    ] = "2",
    response_pairs: Annotated[
        int, typer.Option(help="Prompt switches in each of the four modes; 0 for none.")
    ] = 8,
    steps: Annotated[
        int | None,
        typer.Option(help="Steps a chunk instead of the model's own.", min=1, max=16, show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the figures as JSON too.", show_default=False)
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(help="Folder for pictures of the figures.", show_default=False)
    ] = None,
    precision: Annotated[str, typer.Option(help="auto, bf16, int8 or fp32.")] = "auto",
    device: Device = "auto",
) -> None:
    """Judge a trained Brook: adherence per attribute, distance to renders, drift, crispness, flicker, and how
    soon a switched prompt shows.

    A few minutes on two CPU cores as it stands. [bold]The whole[/]: --count 256 --seconds 2,10,30,120
    --response-pairs 64
    """
    from millstream.commands.train.evaluate import EvalRequest, run_train_eval

    request = EvalRequest(
        weights=weights,
        classifier=classifier,
        motion=motion,
        count=count,
        seconds=parse_numbers(seconds),
        response_pairs=response_pairs,
        steps=steps,
        precision=precision,
        device=device,
        out=out,
        plots=plots,
    )
    run_train_eval(request)


def parse_part(text: str) -> tuple[int, int]:
    part, slash, parts = text.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal()):
        raise ConfigError(f"--part must be K/N, for example 1/4, got {text!r}")
    return int(part), int(parts)


@with_options
def tune(
    path: Annotated[Path, typer.Argument(metavar="RECIPE", help="TOML: model, rewards, algorithm, steps.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder of the run; one that was begun goes on. By default named as the recipe is.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the recipe, print what it would do.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Improve a model by what its streams are worth: rollouts, rewards, GRPO or PPO, and a judge that is held
    back.

    Stop it when you like (Ctrl-C or SIGTERM): the same command goes on to the same bits. Leaves weights that
    serve takes, curves of reward and judge, and clips of every evaluation.
    """
    from millstream.commands.tune import run_tune

    written = run_tune(path, out=out, device=device, dry_run=dry_run)
    if written is not None:
        typer.echo(written)
