"""A result that is read in every step: the processor waits for the device and can no longer run ahead.
Pretended."""

from __future__ import annotations

from course.chapters.cpu_overhead.pretend_device import PretendDevice
from course.reader import Reader

LAYERS = 30
KERNELS = 10
LAUNCH_US = 5.0
KERNEL_US = 8.0


def run(reader: Reader, layers: int = LAYERS) -> None:
    reader.say(
        f"pretended, not measured: {layers} layers of {KERNELS} kernels of {KERNEL_US:g} us, launches of "
        f"{LAUNCH_US:g} us"
    )
    found = dict[str, PretendDevice]()
    for name, read_every in (("read after all layers", layers), ("read after every layer", 1)):
        device = found[name] = PretendDevice(launch_us=LAUNCH_US)
        for layer in range(1, layers + 1):
            for _ in range(KERNELS):
                device.launch(KERNEL_US)
            if layer % read_every == 0:
                device.read()
        reader.say(
            f"{name:24}{device.device_us:8.0f} us, the device is idle {device.is_idle:.1%} of the time"
        )
    quick, slow = found.values()
    assert layers < 2 or slow.device_us > quick.device_us, "waiting costs time"
    assert slow.device_us - quick.device_us == (layers - 1) * LAUNCH_US, "a launch is seen after each wait"
    reader.say("symptom: no error; a trace has a gap before the first kernel of every layer")
    reader.say(
        "tool: torch.cuda.set_sync_debug_mode('warn') names the line; millstream profile read shows the gaps"
    )
    reader.say("fix: keep the number on the device, or read it once, later, while the next step runs")
