"""One step with four models: what each is asked, how long it takes, and what must hold before anything is
learnt."""

from __future__ import annotations

import time

import torch

from course.chapters.four_models.preferences import learnt_reward
from course.chapters.four_models.roles import Roles, log_probs, write
from course.reader import Reader
from millstream.core.errors import CourseError
from millstream.planner.training import Sharding, training_state
from millstream.train.rl.control import DivergenceControl


def run(reader: Reader, billions: float = 7.0, sentences: int = 16) -> None:
    if billions <= 0 or not 2 <= sentences <= 64:
        raise CourseError(
            f"--billions must be above 0 and --sentences 2 to 64, got {billions:g} and {sentences}"
        )
    guess = reader.predict(
        f"four models of {billions:g} billion parameters, two learn with Adam, two only answer. GB of state?"
    )
    learns, answers = (
        training_state(int(billions * 1e9), Sharding(zero=0), trained=trained).total / 1e9
        for trained in (None, 0)
    )
    reader.reveal(
        guess,
        2 * learns + 2 * answers,
        by=f"planner.training.training_state: {learns / billions:g} bytes each, or {answers / billions:g}",
        tolerance=0.05,
    )
    roles = Roles(learnt_reward()[0], DivergenceControl(0.1, 1.0, 10.0))
    before = [each.clone() for each in roles.reference.parameters()]
    made = torch.Generator().manual_seed(0)
    begun = time.perf_counter()
    written = write(roles.actor, sentences, made)
    times = {"actor writes": time.perf_counter() - begun}
    with torch.no_grad():
        for name, answer in (
            ("reward judges", lambda: roles.reward.at_the_end(written)),
            ("reference reads", lambda: log_probs(roles.reference, written)),
            ("critic expects", lambda: roles.critic(written.token_BT)),
        ):
            begun = time.perf_counter()
            answer()
            times[name] = time.perf_counter() - begun
    begun = time.perf_counter()
    found = roles.step(sentences, made)
    times["a whole step"] = time.perf_counter() - begun
    for name, seconds in times.items():
        reader.measured(f"{name:16}{1e3 * seconds:8.0f} ms")
    assert found["ratio_off"] < 1e-3, f"ratios are off by {found['ratio_off']}"
    assert abs(found["kl"]) < 1e-4, f"the actor is its reference at first, {found['kl']} nats apart"
    assert all(torch.equal(a, b) for a, b in zip(before, roles.reference.parameters(), strict=True)), (
        "the reference learnt"
    )
    reader.say(
        "before the first step: ratios are 1 and the actor is its reference; after it the reference is what "
        "it was"
    )
    reader.say("writing takes longest: one call a letter, where all others read whole sentences in one")
