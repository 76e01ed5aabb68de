"""`millstream profile` and its commands. Loads torch once one of them needs it."""

from __future__ import annotations

import typer

from millstream.commands.options import with_options
from millstream.commands.profile.options import ProfileDiffOptions, ProfileOptions, ProfileReadOptions

profile = typer.Typer(
    name="profile",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Find out what a run is bound by, and the most that could be gained.",
)


@profile.command()
@with_options
def run(options: ProfileOptions) -> None:
    """Stream chunks until the window is full, then some under a profiler, and write the trace, one a rank.

    [bold]Then[/]: millstream profile read out/trace.json.gz --html report.html
    """
    from millstream.commands.profile.run import run_profile

    for path in run_profile(options):
        typer.echo(path)


@profile.command()
@with_options
def read(options: ProfileReadOptions) -> None:
    """Say what a run is bound by, with evidence, how sure that is, and the most it could gain.

    Reads our traces and those of other programs. One that cannot be trusted is called so, and gets no advice.
    """
    from millstream.commands.profile.read import run_profile_read

    run_profile_read(options)


@profile.command()
@with_options
def diff(options: ProfileDiffOptions) -> None:
    """Set two runs side by side. Exit code 1 if a chunk, or the peak of memory, grew by more than the
    gate."""
    from millstream.commands.profile.read import parse_share, run_profile_diff

    kept = run_profile_diff(
        options.before, options.after, gate=parse_share(options.gate), as_json=options.as_json
    )
    if not kept:
        raise typer.Exit(1)
