"""Calculate before you run. No torch here: figures from presets, formulas, nothing else."""
