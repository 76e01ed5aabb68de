"""A machine measured, written down, read again, and used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from millstream.commands.plan import calibrate as plan_calibrate
from millstream.commands.plan import fit as plan_fit
from millstream.commands.plan.calibrate import THIN, calibrate
from millstream.commands.plan.collectives import SIZES, fit_alpha_beta
from millstream.commands.plan.fit import Seen, fit, fit_vae_passes
from millstream.commands.plan.options import PlanOptions
from millstream.core.errors import DeviceError
from millstream.core.presets import MODELS
from millstream.core.topology import LOCAL
from millstream.planner.communication import all_reduce
from millstream.planner.hardware import DEVICES, Device, Fleet, Link, find_device
from millstream.planner.profile import profile_text, read_profile
from millstream.planner.software import SOFTWARE
from millstream.planner.time import call_time, decode_ms
from millstream.planner.workload import Workload

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Device, Path]:
    """Hastily: what is found is not held against anything."""
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plan_calibrate, "_SECONDS", 0.02)
            patch.setattr(plan_calibrate, "_RUNS", 1)
            patch.setattr(plan_calibrate, "_SIDE", 512)
            patch.setattr(plan_fit, "CHUNKS", 1)
            patch.setattr(plan_fit, "DEEP_MODEL", "wan-tiny")
            patch.setattr(plan_fit, "LARGER", {"height": 128, "width": 128, "window": 3})
            patch.setattr(plan_fit, "SMALLER", {"height": 64, "width": 64, "window": 3})
            patch.setattr(plan_fit, "SHORTER", {"height": 64, "width": 64, "window": 3, "steps": (1000,)})
            return calibrate(device_name="cpu", out=path), path
    finally:
        torch.set_num_threads(threads)


def test_this_machine_is_measured_and_read_back_as_it_was(measured: tuple[Device, Path]) -> None:
    device, path = measured
    assert read_profile(path) == device
    assert 1e-4 < device.rates.matmul_tflops < 100
    assert 1e-4 < device.rates.bandwidth_tb_s < 10
    assert [width for width, _ in device.rates.deep_conv_tflops] == list(THIN)
    assert device.rates.conv_rate(8, deep=True) < device.rates.conv_rate(128, deep=False), (
        "thin ones over time are slow"
    )
    assert device.link.name == "2 ranks here"
    assert device.link.alpha_us > 0


def test_plans_for_here_use_what_was_measured(measured: tuple[Device, Path]) -> None:
    device, path = measured
    ask = PlanOptions(model="brook", gpus="here", profile=path).ask()
    assert ask.fleet.device == device
    assert ask.work.software == device.fitted
    assert device.fitted is not None
    assert device.fitted.passes >= 0
    assert device.fitted.deep_vae_passes is not None


def test_a_measured_card_stands_for_its_name_in_the_catalogue() -> None:
    slow = replace(DEVICES["h100"], measured=replace(DEVICES["h200"].rates, matmul_tflops=1.0))
    assert find_device("H100", here=slow) is slow
    assert find_device("H200", here=slow) is DEVICES["h200"]


def test_here_is_nothing_before_it_was_measured(tmp_path: Path) -> None:
    assert read_profile(tmp_path / "none.json") is None
    with pytest.raises(DeviceError, match="run millstream plan calibrate"):
        find_device("here")
    with pytest.raises(DeviceError, match="does not exist"):
        PlanOptions(model="brook", gpus="here", profile=tmp_path / "none.json").ask()


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"format": "other"}', '{"format": "millstream-profile", "version": 1}']
)
def test_a_damaged_profile_is_refused_in_a_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(damage)
    with pytest.raises(DeviceError, match="is not a profile"):
        read_profile(path)


def test_rates_of_nothing_are_refused(tmp_path: Path) -> None:
    record = json.loads(profile_text(DEVICES["h200"], {}))
    record["device"]["measured"]["matmul_tflops"] = 0
    (tmp_path / "profile.json").write_text(json.dumps(record))
    with pytest.raises(DeviceError, match="above 0"):
        read_profile(tmp_path / "profile.json")


@given(alpha=st.floats(1.0, 500.0), beta=st.floats(0.5, 500.0), ranks=st.integers(2, 3))
def test_alpha_and_beta_are_found_again_from_ring_times(alpha: float, beta: float, ranks: int) -> None:
    link = Link(name="made up", alpha_us=alpha, beta_gb_s=beta)
    hops = 2 * (ranks - 1)
    times = {size: (hops * alpha / 1e6 + hops / ranks * size / beta / 1e9) for size in SIZES}
    found_alpha, found_beta = fit_alpha_beta(times, ranks)
    assert found_beta == pytest.approx(beta, rel=1e-3)
    again = Link(name="fitted", alpha_us=found_alpha, beta_gb_s=found_beta)
    assert all_reduce(1 << 24, ranks, again) == pytest.approx(all_reduce(1 << 24, ranks, link), rel=0.05)


@pytest.mark.parametrize(
    ("passes", "launches", "vae_passes"), [(120.0, 300.0, 9.0), (0.0, 50.0, 0.0), (40.0, 0.0, 2.0)]
)
def test_a_fit_finds_the_walks_and_calls_that_made_the_times(
    passes: float, launches: float, vae_passes: float
) -> None:
    device = DEVICES["laptop-cpu"]
    spec = MODELS["brook"]
    true = replace(SOFTWARE["processor"], passes=passes, launches=launches, vae_passes=vae_passes)
    works = [
        Workload(spec=spec, stream=replace(spec.stream, height=side, width=side), software=true)
        for side in (256, 128)
    ]
    fleet = Fleet(device=device, count=1)
    seen = [
        Seen(
            call=call_time(work, fleet, LOCAL, keys=work.window_tokens).total,
            commit=0.0,
            front=decode_ms(work, device),
        )
        for work in works
    ]
    found = fit(device, works, seen)
    assert fit_vae_passes(device, works[1], seen[1].front) == pytest.approx(vae_passes, abs=1e-6)
    assert found.passes == pytest.approx(passes, abs=1e-6)
    assert found.launches == pytest.approx(launches, abs=1e-6)
    assert found.vae_passes == pytest.approx(vae_passes, abs=1e-6)
