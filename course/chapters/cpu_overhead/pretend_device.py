"""A device that is not there: two clocks, one of the processor that launches kernels and one of the device
that runs them.

Nothing is measured and nothing sleeps. A launch takes the processor's time; a kernel begins when it was
launched and the one before it is over. Reading a result lets the processor wait for the device.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class PretendDevice:
    launch_us: float
    processor_us: float = 0.0
    device_us: float = 0.0
    busy_us: float = 0.0
    """Busy time of the device."""

    def launch(self, *kernels_us: float) -> None:
        """Launch one kernel, or as many as a graph holds, by one call."""
        self.processor_us += self.launch_us
        self.device_us = max(self.device_us, self.processor_us) + sum(kernels_us)
        self.busy_us += sum(kernels_us)

    def read(self) -> None:
        """Wait for the device, as `.item()` does."""
        self.processor_us = max(self.processor_us, self.device_us)

    @property
    def is_idle(self) -> float:
        """Share of the time so far."""
        return 1 - self.busy_us / max(self.processor_us, self.device_us)
