"""Times of the real layers of full-size models on this machine, taken once and kept in a file."""

from __future__ import annotations

import hashlib
import json
from importlib import metadata

from ..sweeps.environment import ROOT, code_revision, device_name
from ..sweeps.ranks import Job, Tell, run_jobs
from ..sweeps.rows import write_json
from .full_models import FullModel, LayerCosts

FOLDER = ROOT / "results" / "local" / "profiles"


def profile_of(model: FullModel, device: str, *, split_sublayers: bool = False) -> LayerCosts:
    """Seconds of F and B of each layer on one row, one thread on a CPU.

    A process of its own takes them; what it found is kept in ``results/local/profiles`` and used again as long as the
    code, torch and the device are the same.

    Raises:
        UserError: the folder cannot be written.
        JobError: a layer cannot be run here.
    """
    described = {
        "model": model.name,
        "split_sublayers": split_sublayers,
        "device": device,
        "device_name": device_name(device),
        "torch": metadata.version("torch"),
        "code": code_revision(),
    }
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]
    name = f"{model.family}-{model.num_layers}-{digest}"
    path = FOLDER / f"{name}.json"
    if not path.exists():
        write_json(FOLDER / ".writable", {}).unlink()
        job = Job(f"profile of {model.name}", _profile, (model, device, split_sublayers), FOLDER / f"{name}.log")
        write_json(path, described | run_jobs([job])[0][0])
    found = json.loads(path.read_text(encoding="utf-8"))
    forward, backward, boundary_bytes = (tuple(found[key]) for key in ("forward", "backward", "boundary_bytes"))
    return LayerCosts(forward, backward, boundary_bytes, found["distinct"])


def _profile(rank: int, tell: Tell, model: FullModel, device: str, split_sublayers: bool) -> dict[str, object]:
    import torch

    from .layer_costs import profiled_seconds

    costs = profiled_seconds(model, torch.device(device), split_sublayers=split_sublayers)
    return {
        "forward": costs.forward,
        "backward": costs.backward,
        "boundary_bytes": costs.boundary_bytes,
        "distinct": costs.distinct,
    }
