"""Translation of a DeepSpeed configuration to our recipe, with a list of what has no equivalent here."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millstream.core.errors import ConfigError

AUTO = "auto"
"""Value in DeepSpeed for a field that another library fills in."""
STAGES = {0: "replicas", 1: "zero1", 2: "zero2", 3: "fsdp"}
OPTIMISERS = {"Adam": "adamw", "AdamW": "adamw", "Muon": "muon"}
SCHEDULES = {"WarmupLR": "constant", "WarmupCosineLR": "cosine"}
LEFT_ALONE = {
    "steps_per_print",
    "wall_clock_breakdown",
    "dump_state",
    "prescale_gradients",
    "communication_data_type",
}
"""Fields about what is shown, or how data travels, which no recipe has."""
HOW_ZERO_TRAVELS = {
    *(
        "allgather_bucket_size",
        "allgather_partitions",
        "contiguous_gradients",
        "overlap_comm",
        "reduce_bucket_size",
    ),
    *("reduce_scatter", "round_robin_gradients", "sub_group_size", "ignore_unused_parameters"),
    *("stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_param_persistence_threshold"),
    *("stage3_prefetch_bucket_size", "stage3_gather_16bit_weights_on_model_save"),
}
SAME_HERE: dict[str, Any] = {
    "eps": 1e-8,
    "torch_adam": True,
    "adam_w_mode": True,
    "hysteresis": 1,
    "min_loss_scale": 1,
}
SAME_HERE |= {"initial_scale_power": 16, "loss_scale_window": 2000, "warmup_min_lr": 0, "warmup_min_ratio": 0}
SAME_HERE |= {"warmup_type": "linear", "cos_min_ratio": 0}
"""Values of fields that this program always uses."""


@dataclass(slots=True)
class Translation:
    recipe: dict[str, Any] = field(default_factory=dict)
    parallel: dict[str, Any] = field(default_factory=dict)
    without_twin: list[str] = field(default_factory=list)
    """Fields without an equivalent here, each with the reason."""

    def lines(self) -> list[str]:
        """Return the lines of a recipe, with what is missing as comments."""
        found = [f"{name} = {_toml(value)}" for name, value in self.recipe.items()]
        found += ["", "[parallel]", *(f"{name} = {_toml(value)}" for name, value in self.parallel.items())]
        if self.without_twin:
            found += ["", "# Without a twin here:", *(f"# - {each}" for each in self.without_twin)]
        return found

    def lacks(self, what: str, why: str) -> None:
        self.without_twin.append(f"{what}: {why}")

    def lacks_rest(self, where: str, values: Mapping[str, Any], read: Collection[str]) -> None:
        """Note the fields that were not read, unless they have the values used here."""
        for name in sorted(values.keys() - set(read)):
            if name in SAME_HERE and values[name] not in (SAME_HERE[name], AUTO):
                self.lacks(f"{where} {name}", f"{values[name]}, always {SAME_HERE[name]} here")
            elif name not in SAME_HERE and values[name] not in (AUTO, False, None):
                self.lacks(f"{where} {name}", "nothing like it")


def translate(config: Mapping[str, Any], ranks: int) -> Translation:
    """Translate a configuration for this number of ranks. An unknown field is listed, never dropped."""
    found = Translation()
    for name, value in config.items():
        if value == AUTO:
            found.lacks(name, "auto: another library fills it in; say it in the recipe")
        elif name in _FIELDS:
            _FIELDS[name](found, value)
        elif name not in LEFT_ALONE and value not in (False, None, {}):
            found.lacks(name, "nothing like it")
    _translate_batch(found, config, ranks)
    found.parallel.setdefault("dp", ranks)
    return found


def read_deepspeed(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; name a DeepSpeed configuration, JSON"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no DeepSpeed configuration: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path} is no DeepSpeed configuration: not a JSON object")
    return config


def _translate_batch(found: Translation, config: Mapping[str, Any], ranks: int) -> None:
    """Translate the batch sizes. Two of the three determine the third, as in DeepSpeed."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    given = {name: config[name] for name in names if isinstance(config.get(name), int)}
    whole, micro, parts = (given.get(name) for name in names)
    if parts is None:
        parts = whole // (micro * ranks) if whole and micro else 1
    if whole is None and micro:
        whole = micro * parts * ranks
    if whole is None:
        return
    if micro is not None and micro * parts * ranks != whole:
        raise ConfigError(
            f"{names[0]} {whole} is not {names[1]} {micro} x {names[2]} {parts} x {ranks} ranks; give --ranks"
        )
    found.recipe["batch"] = whole
    if parts > 1:
        found.parallel["micro_batches"] = parts


def _optimizer(found: Translation, value: Mapping[str, Any]) -> None:
    kind = value.get("type")
    params = value.get("params", {})
    if kind in OPTIMISERS:
        found.recipe["optimiser"] = OPTIMISERS[kind]
    else:
        found.lacks(f"optimizer {kind}", "adamw, adafactor and muon learn here")
    for theirs, ours in (("lr", "lr"), ("weight_decay", "weight_decay")):
        if params.get(theirs, AUTO) != AUTO:
            found.recipe[ours] = params[theirs]
    if params.get("betas", AUTO) not in (AUTO, [0.9, 0.99]):
        found.lacks("optimizer betas", f"{params['betas']}, always 0.9 and 0.99 here")
    found.lacks_rest("optimizer", params, ("lr", "weight_decay", "betas"))


def _scheduler(found: Translation, value: Mapping[str, Any]) -> None:
    kind = value.get("type")
    params = value.get("params", {})
    if kind in SCHEDULES:
        found.recipe["schedule"] = SCHEDULES[kind]
    else:
        found.lacks(f"scheduler {kind}", "a warm-up, then a constant rate or a cosine")
    for theirs, ours in (
        ("warmup_num_steps", "warm_up"),
        ("total_num_steps", "steps"),
        ("warmup_max_lr", "lr"),
    ):
        if isinstance(params.get(theirs), int | float):
            found.recipe[ours] = params[theirs]
    found.lacks_rest("scheduler", params, ("warmup_num_steps", "total_num_steps", "warmup_max_lr"))


def _precision(name: str) -> Callable[[Translation, Mapping[str, Any]], None]:
    def translate_precision(found: Translation, value: Mapping[str, Any]) -> None:
        if value.get("enabled") is not True:
            return
        found.recipe["precision"] = name
        if value.get("loss_scale", 0) not in (0, AUTO):
            found.lacks(f"{name} loss_scale", "the scale follows overflows, it cannot be fixed")
        found.lacks_rest(name, value, ("enabled", "loss_scale"))

    return translate_precision


def _zero(found: Translation, value: Mapping[str, Any]) -> None:
    stage = value.get("stage", 0)
    if stage not in STAGES:
        raise ConfigError(f"zero_optimization stage must be 0, 1, 2 or 3, got {stage!r}")
    found.parallel["data"] = STAGES[stage]
    for name in ("offload_optimizer", "offload_param"):
        device = value[name].get("device", "none") if isinstance(value.get(name), Mapping) else "none"
        if device == "cpu" and (name == "offload_optimizer" or STAGES[stage] == "fsdp"):
            found.recipe["offload"] = "optimiser"
        elif device != "none":
            found.lacks(
                name, f"{device}: optimisers go to host memory, and weights with them where data is fsdp"
            )
    in_groups = ("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients")
    for name in in_groups:
        if value.get(name):
            found.lacks(name, "hsdp shards within groups; nothing travels in fewer bits")
    read = ("stage", "offload_optimizer", "offload_param", *in_groups, *HOW_ZERO_TRAVELS)
    found.lacks_rest("zero_optimization", value, read)


def _clipping(found: Translation, value: float) -> None:
    if value:
        found.recipe["grad_clip"] = value


def _checkpointing(found: Translation, value: Mapping[str, Any]) -> None:
    found.recipe["recompute"] = "full"
    for name in ("cpu_checkpointing", "partition_activations"):
        if value.get(name):
            found.lacks(
                f"activation_checkpointing {name}", "what a block keeps stays whole and on the device"
            )
    found.lacks_rest(
        "activation_checkpointing",
        value,
        ("cpu_checkpointing", "partition_activations", "profile", "number_checkpoints"),
    )


def _nothing(_: Translation, __: object) -> None:
    """Read with others, by `_translate_batch`."""


_FIELDS: dict[str, Callable[[Translation, Any], None]] = {
    "optimizer": _optimizer,
    "scheduler": _scheduler,
    "fp16": _precision("fp16"),
    "bf16": _precision("bf16"),
    "zero_optimization": _zero,
    "gradient_clipping": _clipping,
    "activation_checkpointing": _checkpointing,
    "train_batch_size": _nothing,
    "train_micro_batch_size_per_gpu": _nothing,
    "gradient_accumulation_steps": _nothing,
}


def _toml(value: object) -> str:
    return json.dumps(value)
