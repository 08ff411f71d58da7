"""Write a checkpoint of Levanter's in the form of Hugging Face: ``python -m tradewind.serving.convert_checkpoint``.

A process of its own, on CPUs, since a worker that loads JAX would keep the chips from its engine.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import haliax as hax
import jax.numpy as jnp
from haliax.partitioning import set_mesh
from levanter.utils.mesh import create_mesh_from_axis_specs

from tradewind.recipes.lm.levanter_parts import mesh, quiet_libraries
from tradewind.recipes.lm.stored_models import ModelAxes, load_checkpointed
from tradewind.serving.levanter_model import described


def convert(checkpoint: str, export: str, output: str) -> None:
    """Write the checkpoint's weights to ``output``.

    Args:
        export: Local folder with the config of the same model, and its tokenizer.
    """
    quiet_libraries()
    config, converter = described(export)
    stored = converter.hf_config_from_hf_checkpoint(export)
    mesh_config = mesh()
    ici, dcn = mesh_config.axis_shapes(1, 1)
    with set_mesh(create_mesh_from_axis_specs(ici_axes=ici, dcn_axes=dcn)):
        axes = ModelAxes(config, hax.Axis("vocab", stored.vocab_size), mesh_config.resolved_param_mapping)
        model = load_checkpointed(axes, checkpoint)
        kind = getattr(stored, "torch_dtype", None)
        dtype = None if kind is None else jnp.dtype(str(kind).removeprefix("torch."))
        converter.save_pretrained(model, output, save_reference_code=False, save_tokenizer=False, dtype=dtype)
    for file in Path(export).iterdir():
        if not (Path(output) / file.name).exists():
            shutil.copy(file, output)


if __name__ == "__main__":
    convert(*sys.argv[1:])
