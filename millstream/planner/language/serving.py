"""Time that a decoder takes to read a prompt and to write a token, and number of texts that fit: split over
all devices by tensors.

Lower bounds: what must be computed at the rates that kernels reach, what must be read at the bandwidth that
they reach, and the sums between devices by alpha-beta. Nothing between kernels, no launches, no scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.core.chunk_work import attention_flops
from millstream.core.errors import ConfigError
from millstream.planner.cards.weights import check_weights, weight_bytes
from millstream.planner.communication import all_reduce
from millstream.planner.footprint import PROCESS_BYTES
from millstream.planner.hardware import Fleet
from millstream.planner.judge import MEMORY_SHARE
from millstream.planner.language.decoders import DecoderConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingAsk:
    decoder: DecoderConfig
    fleet: Fleet
    """All of it holds one copy."""
    context: int
    """Tokens of a text: a prompt's that are read, or those there are when the next is written."""
    batch: int = 1
    weights: str = "native"
    kv_value_bytes: int = 2

    def __post_init__(self) -> None:
        check_weights(self.weights)
        if min(self.context, self.batch) < 1 or max(self.context, self.batch) > 10**9:
            raise ConfigError(f"--context and --batch must be 1 to 1e9, got {self.context} and {self.batch}")
        if self.fleet.open or self.fleet.count > self.decoder.heads:
            heads = self.decoder.heads
            raise ConfigError(
                f"tensor parallelism shares {heads} heads: name 1 to {heads} devices, such as --gpus 8xH100"
            )

    @property
    def weight_bytes(self) -> float:
        """Bytes of one parameter."""
        return weight_bytes(self.weights, self.fleet.device.value_bytes)

    @property
    def kv_share(self) -> float:
        """Share of the keys and values that one device holds: heads are not split, they are repeated."""
        return max(1 / self.fleet.count, 1 / self.decoder.kv_heads)


@dataclass(frozen=True, kw_only=True, slots=True)
class CallTimes:
    """Times of one call, milliseconds."""

    computed: float
    read: float
    talked: float

    @property
    def total(self) -> float:
        return max(self.computed, self.read) + self.talked

    @property
    def bound(self) -> str:
        return "compute" if self.computed > self.read else "bandwidth"


def prefill_time(ask: ServingAsk) -> CallTimes:
    """All tokens of all prompts at once. Attention is causal: half of the square."""
    d = ask.decoder
    rates = ask.fleet.device.rates
    n = ask.fleet.count
    tokens = ask.batch * ask.context
    products = 2 * d.multiplied_parameters * tokens / n / rates.matmul_tflops
    attention = d.layers * attention_flops(tokens, ask.context, d.width) / 2 / n / rates.attention_tflops
    read = d.read_parameters(tokens) * ask.weight_bytes / n / rates.bandwidth_tb_s
    return CallTimes(computed=(products + attention) / 1e9, read=read / 1e9, talked=_sums(ask, tokens))


def decode_time(ask: ServingAsk) -> CallTimes:
    """Return the times of the next token of each text: all weights and all keys and values are read for
    it."""
    d = ask.decoder
    rates = ask.fleet.device.rates
    n = ask.fleet.count
    products = 2 * d.multiplied_parameters * ask.batch / n / rates.matmul_tflops
    attention = d.layers * attention_flops(ask.batch, ask.context, d.width) / n / rates.attention_tflops
    read = read_bytes(ask) / rates.bandwidth_tb_s
    return CallTimes(computed=(products + attention) / 1e9, read=read / 1e9, talked=_sums(ask, ask.batch))


def read_bytes(ask: ServingAsk) -> float:
    """Count the bytes that each device reads for the next token of each text."""
    cached = ask.batch * ask.decoder.kv_bytes(ask.context, ask.kv_value_bytes) * ask.kv_share
    return ask.decoder.read_parameters(ask.batch) * ask.weight_bytes / ask.fleet.count + cached


def _sums(ask: ServingAsk, tokens: int) -> float:
    """Two of every block, of all activations."""
    size = tokens * ask.decoder.width * ask.fleet.device.value_bytes
    return 2 * ask.decoder.layers * all_reduce(size, ask.fleet.count, ask.fleet.link_between(ask.fleet.count))


def free_bytes(ask: ServingAsk) -> float:
    """For keys and values on each device; below 0 where the weights do not fit."""
    held = ask.decoder.parameters * ask.weight_bytes / ask.fleet.count
    return MEMORY_SHARE * ask.fleet.device.memory_bytes - PROCESS_BYTES - held


def texts_that_fit(ask: ServingAsk) -> int:
    each = ask.decoder.kv_bytes(ask.context, ask.kv_value_bytes) * ask.kv_share
    return max(0, int(free_bytes(ask) // each))


def tokens_a_call(accepted: float, ahead: int) -> float:
    """Return the mean tokens from a call that judges proposals, if each is accepted with this probability
    whatever became of the others."""
    if not (0 <= accepted <= 1 and 0 <= ahead <= 1024):
        raise ConfigError(f"--accepted must be 0 to 1 and --ahead 0 to 1024, got {accepted:g} and {ahead}")
    return sum(accepted**place for place in range(ahead + 1))


def speculative_gain(accepted: float, ahead: int, draft_cost: float) -> float:
    """Return the speed-up, where a draft's token costs this share of a call; judging costs as much as
    writing one."""
    return tokens_a_call(accepted, ahead) / (1 + ahead * draft_cost)
