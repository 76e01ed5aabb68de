"""The four models that learn to please somebody, and one step of PPO with them. The arithmetic is the
train's.

The actor writes sentences. The reward model says how much somebody would like them. The critic says what to
expect while one is being written. The reference is what the actor was: how far the actor is from it is paid
for, letter by letter.
Shapes: B sentences, T letters.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from course.tinylm.cache import CachedText, PagedCache
from course.tinylm.model import TinyLM
from course.tinylm.text import END, decode, encode
from course.tinylm.training import trained
from millstream.train.rl.advantages import generalised, standardised
from millstream.train.rl.clipped_adamw import ClippedAdamW
from millstream.train.rl.control import DivergenceControl
from millstream.train.rl.objective import clipped_policy

LONGEST = 47
STOP = encode(".")[0]
CLIP = 0.2
EPOCHS = 2
TRACE = 0.95


class Sentences(NamedTuple):
    token_BT: Tensor
    """With the newline before them."""
    is_written_BT: Tensor
    """Which letters were drawn: up to the full stop."""

    @property
    def texts(self) -> list[str]:
        rows = zip(self.token_BT[:, 1:].tolist(), self.is_written_BT.sum(dim=1).tolist(), strict=True)
        return [decode(row[:count]) for row, count in rows]


class ScoredLM(nn.Module):
    """A language model with a number in place of letters: a critic's at every letter, a reward model's at the
    last."""

    def __init__(self, lm: TinyLM) -> None:
        super().__init__()
        self.lm = copy.deepcopy(lm).requires_grad_(requires_grad=True)
        self.score = nn.Linear(lm.config.width, 1)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def forward(self, token_BT: Tensor) -> Tensor:
        """[B, T]"""
        scores: Tensor = self.score(self.lm.read(token_BT))[..., 0]
        return scores

    def at_the_end(self, made: Sentences) -> Tensor:
        """[B]"""
        last_B = made.is_written_BT.sum(dim=1)
        scores: Tensor = self(made.token_BT)
        return scores[torch.arange(len(last_B)), last_B]


class Roles:
    def __init__(self, reward: ScoredLM, control: DivergenceControl, *, lr: float = 6e-4) -> None:
        self.reference = trained()
        self.reward = reward
        self.control = control
        self.actor = copy.deepcopy(self.reference).requires_grad_(requires_grad=True)
        self.critic = ScoredLM(self.reference)
        self._follow = {
            name: ClippedAdamW(model.parameters(), lr=lr, weight_decay=0.0, grad_clip=1.0)
            for name, model in (("actor", self.actor), ("critic", self.critic))
        }

    def step(self, sentences: int, made: torch.Generator) -> dict[str, float]:
        """Write, judge, learn."""
        written = write(self.actor, sentences, made)
        mask = written.is_written_BT
        with torch.no_grad():
            old, reference = (log_probs(model, written) for model in (self.actor, self.reference))
            value = self.critic(written.token_BT)[:, :-1] * mask
            score = self.reward.at_the_end(written)
        kl = (old - reference) * mask
        found = {"reward": float(score.mean()), "kl": float(kl.sum(dim=1).mean())}
        if self.control.is_beyond(found["kl"]):
            score = torch.zeros_like(score)  # only the way back counts
        advantage, returns = self._advantages(-self.control.coefficient * kl, score, value, mask)
        found["ratio_off"] = self._off(written, old)
        for _ in range(EPOCHS):
            found |= self._learn(written, old, advantage, returns)
        self.control.adjust(found["kl"])
        return found

    def _advantages(
        self, paid_BT: Tensor, score_B: Tensor, value_BT: Tensor, mask_BT: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The reward comes with the last letter; what distance costs, with every letter."""
        last_B = mask_BT.sum(dim=1) - 1
        reward_BT = paid_BT.clone()
        reward_BT[torch.arange(len(last_B)), last_B] += score_B
        advantage, returns = generalised(reward_BT, value_BT, discount=1.0, trace=TRACE)
        flat = standardised(advantage[mask_BT][:, None], torch.ones(int(mask_BT.sum()), dtype=torch.bool))
        return torch.zeros_like(advantage).masked_scatter(mask_BT, flat), returns * mask_BT

    def _learn(self, written: Sentences, old: Tensor, advantage: Tensor, returns: Tensor) -> dict[str, float]:
        weight = written.is_written_BT / written.is_written_BT.sum()
        policy = clipped_policy(log_probs(self.actor, written), old, advantage, weight, CLIP)
        policy.loss.backward()
        error = ((self.critic(written.token_BT)[:, :-1] - returns).square() * weight).sum()
        error.backward()
        for follow in self._follow.values():
            follow.step()
        return {"clipped": float(policy.clipped), "critic": float(error.detach())}

    @torch.no_grad()
    def _off(self, written: Sentences, old: Tensor) -> float:
        """Measure how far ratios are from 1 before anything was learnt: 0, if the weights that sampled are
        those that learn."""
        new = log_probs(self.actor, written)
        return float(((new - old).exp() - 1)[written.is_written_BT].abs().max())


def log_probs(lm: TinyLM, made: Sentences) -> Tensor:
    """Return the log-probabilities of the letters that were drawn, [B, T]."""
    logits = lm(made.token_BT[:, :-1]).log_softmax(-1)
    return logits.gather(-1, made.token_BT[:, 1:, None])[..., 0] * made.is_written_BT


@torch.no_grad()
def write(lm: TinyLM, sentences: int, made: torch.Generator) -> Sentences:
    """Write sentences, one a row, all rows in one call a letter."""
    cache = PagedCache(lm.config, pages=3 * sentences)
    texts = [CachedText() for _ in range(sentences)]
    tokens = [torch.full((sentences, 1), END)]
    for _ in range(LONGEST):
        logits = lm(tokens[-1], cache.grow(texts, 1))[:, -1]
        tokens.append(torch.multinomial(logits.softmax(-1), 1, generator=made))
    token_BT = torch.cat(tokens, dim=1)
    stops = (token_BT[:, 1:] == STOP).int()
    return Sentences(token_BT, (stops.cumsum(dim=1) - stops) == 0)
