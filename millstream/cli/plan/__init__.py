"""`millstream plan`: how its options are spelled. Loads no torch."""

from millstream.cli.plan import crowds, explain, streams, training  # noqa: F401  (they name themselves to the group)
from millstream.cli.plan.options import plan as plan
