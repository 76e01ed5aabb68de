"""A painted world that one walks through: land in three dimensions without an end, seen from a walker's eye.

`noise` hashes places, `terrain` makes land of it, `scenery` says what stands there; `scene` draws lots and
chooses where a walk begins, `actions` what is done, `walker` the poses that follow. `render` paints: `surface`
finds what a line of sight meets, `paint`, `sky` and `weather` colour it, `solids` and `things` stand in it.
`captions` tells, and `clips` does all of it. What goes with what is today's `vocabulary`.
"""
