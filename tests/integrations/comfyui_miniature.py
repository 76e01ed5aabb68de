"""A miniature of ComfyUI's executor: loads a node pack as it does, checks a workflow, runs it, keeps outputs
between runs.

What it follows (ComfyUI at acbf08cd60fa, 2026-01-03): a pack is a folder whose package has
NODE_CLASS_MAPPINGS; a workflow maps ids to `class_type` and `inputs`, an input being a value or a link [id,
output]; a node runs again when an input, or what IS_CHANGED says of it or of a node before it, differs from
the last run, NaN from everything; IS_CHANGED is given values alone, None for links; an object lives as long
as its id; FUNCTION is called by keyword and gives a tuple as long as RETURN_TYPES.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

Workflow = dict[str, dict[str, Any]]


def load_pack(folder: Path) -> ModuleType:
    name = str(folder).replace(".", "_x_")
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_link(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], int)
    )


class Executor:
    def __init__(self, pack: ModuleType, *others: type) -> None:
        self.classes: dict[str, Any] = pack.NODE_CLASS_MAPPINGS | {other.__name__: other for other in others}
        self.executed: list[str] = []
        """Of the last run, in order."""
        self._objects: dict[str, Any] = {}
        self._kept: dict[str, tuple[Any, tuple[Any, ...]]] = {}

    def run(self, workflow: Workflow) -> dict[str, tuple[Any, ...]]:
        for node_id in workflow:
            self.check(workflow, node_id)
        self.executed, changed = [], {node_id: self._changed(workflow[node_id]) for node_id in workflow}
        outputs = [
            node_id
            for node_id, node in workflow.items()
            if getattr(self.classes[node["class_type"]], "OUTPUT_NODE", False)
        ]
        assert outputs, "ComfyUI refuses a workflow without outputs"
        done: dict[str, tuple[Any, ...]] = {}
        for node_id in outputs:
            self._output(workflow, node_id, changed, done)
        return done

    def check(self, workflow: Workflow, node_id: str) -> None:
        node = workflow[node_id]
        types = self.classes[node["class_type"]].INPUT_TYPES()
        known = types["required"] | types.get("optional", {})
        assert types["required"].keys() <= node["inputs"].keys() <= known.keys(), (
            f"{node_id} lacks an input, or has one too many"
        )
        for name, value in node["inputs"].items():
            kind = known[name][0]
            options = known[name][1] if len(known[name]) > 1 else {}
            if is_link(value):
                source = self.classes[workflow[value[0]]["class_type"]]
                assert source.RETURN_TYPES[value[1]] == kind, f"{node_id}.{name} takes {kind}"
            elif isinstance(kind, list):
                assert value in kind, f"{node_id}.{name} is one of {kind}"
            else:
                python = {"STRING": str, "INT": int, "FLOAT": float, "BOOLEAN": bool}[kind]
                assert python(value) == value
                assert options.get("min", value) <= value <= options.get("max", value)

    def _changed(self, node: dict[str, Any]) -> Any:
        cls = self.classes[node["class_type"]]
        values = {name: None if is_link(value) else value for name, value in node["inputs"].items()}
        return cls.IS_CHANGED(**values) if hasattr(cls, "IS_CHANGED") else False

    def _signature(self, workflow: Workflow, node_id: str, changed: dict[str, Any]) -> tuple[Any, ...]:
        node = workflow[node_id]
        inputs = [
            (name, self._signature(workflow, value[0], changed) if is_link(value) else value)
            for name, value in sorted(node["inputs"].items())
        ]
        differs = changed[node_id]
        return (node["class_type"], object() if differs != differs else differs, tuple(inputs))

    def _output(
        self, workflow: Workflow, node_id: str, changed: dict[str, Any], done: dict[str, Any]
    ) -> tuple[Any, ...]:
        if node_id in done:
            return done[node_id]
        node = workflow[node_id]
        signature = self._signature(workflow, node_id, changed)
        kept = self._kept.get(node_id)
        if kept is not None and kept[0] == signature:
            done[node_id] = kept[1]
            return done[node_id]
        inputs = {
            name: self._output(workflow, value[0], changed, done)[value[1]] if is_link(value) else value
            for name, value in node["inputs"].items()
        }
        cls = self.classes[node["class_type"]]
        worker = self._objects.setdefault(node_id, cls())
        self.executed.append(node_id)
        done[node_id] = getattr(worker, cls.FUNCTION)(**inputs)
        assert isinstance(done[node_id], tuple)
        assert len(done[node_id]) == len(cls.RETURN_TYPES)
        self._kept[node_id] = (signature, done[node_id])
        return done[node_id]
