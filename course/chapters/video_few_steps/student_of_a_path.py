"""A student learns where the teacher's path ends, from where it began. It needs one step, and is not
blurred."""

from __future__ import annotations

import torch
from torch import nn

from course.chapters.video_few_steps.two_points import distance, ends, some_noise
from course.reader import Reader
from millstream.core.errors import CourseError

TEACHER_STEPS = 16


def run(reader: Reader, steps: int = 300, rows: int = 256) -> None:
    if min(steps, rows) < 1:
        raise CourseError(f"--steps and --rows must be 1 or more, got {steps} and {rows}")
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimiser = torch.optim.Adam(student.parameters(), lr=3e-3)
    for step in range(steps):
        noise = some_noise(rows, seed=1 + step)
        target = ends(noise, TEACHER_STEPS).flatten()[:, None]
        loss = (student(noise.flatten()[:, None]) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    fresh = some_noise(1000)
    with torch.no_grad():
        found = student(fresh.flatten()[:, None])
    errors = {
        f"teacher, {TEACHER_STEPS} steps": distance(ends(fresh, TEACHER_STEPS)),
        "teacher, 1 step": distance(ends(fresh, 1)),
    }
    errors["student, 1 step"] = distance(found)
    for name, error in errors.items():
        reader.measured(f"{name:18} {error:.3f} from the nearest picture on average")
    assert errors["student, 1 step"] < 0.3 * errors["teacher, 1 step"], f"{errors}"
    reader.say(
        "noise and end of path are a fixed pair, so a squared error does not average over pictures: "
        "train.distil.ode"
    )
