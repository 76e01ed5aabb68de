"""Chapter 13, what is asked of an answer."""

from __future__ import annotations

from types import ModuleType

import torch
from torch.nn import functional


def judge_rewards_of_a_sentence_sum_to_its_score_less_what_distance_costs(answer: ModuleType) -> None:
    mine = [-0.1, -0.5, -2.0]
    theirs = [-0.3, -0.4, -1.0]
    found = answer.letter_rewards(mine, theirs, 3.0, 0.5)
    assert len(found) == 3, f"{len(found)} rewards for 3 letters"
    expected = 3.0 - 0.5 * (sum(mine) - sum(theirs))
    assert abs(sum(found) - expected) < 1e-9, f"together {sum(found)}, not {expected}"


def judge_the_score_comes_with_the_last_letter(answer: ModuleType) -> None:
    found = answer.letter_rewards([-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0], 2.0, 0.5)
    assert [round(each, 9) + 0 for each in found] == [0, 0, 2.0], f"{found}"


def judge_the_loss_is_that_of_logistic_regression(answer: ModuleType) -> None:
    for better, worse in ((0.0, 0.0), (2.0, -1.0), (-1.0, 3.0)):
        expected = float(-functional.logsigmoid(torch.tensor(better - worse, dtype=torch.float64)))
        assert abs(answer.preference_loss(better, worse) - expected) < 1e-9, f"{better} and {worse}"
