"""Why tensor parallel stays inside a machine: the time of a block's products against that of its sums, by the
planner."""

from __future__ import annotations

from course.reader import Reader
from millstream.core.chunk_work import block_products
from millstream.core.errors import CourseError
from millstream.core.presets import find_model
from millstream.planner.communication import all_reduce
from millstream.planner.hardware import NETWORK, NVLINK4, PCIE5, find_device
from millstream.planner.time import product_ms


def run(reader: Reader, tokens: int = 4680) -> None:
    if tokens < 1:
        raise CourseError(f"--tokens must be 1 or more, got {tokens}")
    dit = find_model("wan2.1-t2v-14b").dit
    device = find_device("H200")
    size = tokens * dit.width * 2
    guess = reader.predict(
        f"{tokens} tokens of width {dit.width} in bf16. How many MB does one sum of a block carry?"
    )
    reader.reveal(guess, size / 1e6, by="tokens * width * 2 bytes", tolerance=0.05)
    reader.say(f"one block of a 14B model on {device.name}s, {tokens} tokens, ms (two sums a block):")
    reader.say(f"{'tp':>4}{'products':>10}{NVLINK4.name:>12}{PCIE5.name:>13}{NETWORK.name:>19}")
    shares = dict[int, float]()
    for tp in (1, 2, 4, 8):
        products = sum(
            product_ms(product, device, fp8=False) for product in block_products(dit, tokens, tp=tp)
        )
        sums = [2 * all_reduce(size, tp, link) for link in (NVLINK4, PCIE5, NETWORK)]
        shares[tp] = sums[0] / (sums[0] + products)
        reader.say(f"{tp:4}{products:10.2f}{sums[0]:12.2f}{sums[1]:13.2f}{sums[2]:19.2f}")
    assert sorted(shares.values()) == list(shares.values()), f"sums take a growing share: {shares}"
    reader.say(
        "products shrink with more ranks, sums do not: their share grows, and on slow links they soon are "
        "most of the time"
    )
