"""A model's weights under their Hugging Face names, as tensors and as the bytes that a publish moves."""

from __future__ import annotations

import json

import torch
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import PreTrainedModel

from moerl_runtime.weights.publish import TensorBytes

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


def named_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Detached CPU copies under Hugging Face names: experts, fused in memory, are one tensor each again."""
    with torch.no_grad():
        named: dict[str, Tensor] = revert_weight_conversion(model, dict(model.state_dict()))
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in named.items()}


def to_bytes(named: dict[str, Tensor]) -> dict[str, TensorBytes]:
    """The tensors as raw bytes (views on their memory; keep the tensors unchanged until the publish is done)."""
    return {
        name: TensorBytes(
            dtype=_DTYPES[tensor.dtype],
            shape=tuple(tensor.shape),
            data=tensor.reshape(-1).view(torch.uint8).numpy().data,
        )
        for name, tensor in named.items()
    }


def config_files(model: PreTrainedModel) -> dict[str, str]:
    """The small files beside the weights: config.json, with the class that `from_pretrained` should build."""
    config = json.loads(model.config.to_json_string(use_diff=False))
    config["architectures"] = [type(model).__name__]
    return {"config.json": json.dumps(config, indent=2, sort_keys=True) + "\n"}
