"""Checkpoints: finding them, reading them in any layout people have, converting them, merging LoRAs into
them.

`files` opens, `parts` recognises, `locate` finds, `survey` compares, `fill` loads, `convert` writes. Names
and bytes only: nothing here runs a network.
"""
