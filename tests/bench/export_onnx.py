"""Export a BERT checkpoint for onnxruntime: `python export_onnx.py CHECKPOINT OUT.onnx`, in the torch venv."""

from __future__ import annotations

import sys

import torch
from transformers import AutoModel


class Hidden(torch.nn.Module):
    def __init__(self, trunk: torch.nn.Module) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor):
        return self.trunk(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state


checkpoint, out = sys.argv[1:]
model = Hidden(AutoModel.from_pretrained(checkpoint, attn_implementation="eager").float().eval())
ids = torch.ones(2, 16, dtype=torch.long)
names = ["input_ids", "attention_mask", "token_type_ids"]
axes = {name: {0: "batch", 1: "length"} for name in [*names, "hidden"]}
with torch.no_grad():
    torch.onnx.export(
        model, (ids, ids, torch.zeros_like(ids)), out, input_names=names, output_names=["hidden"],
        dynamic_axes=axes, dynamo=False, opset_version=17,
    )  # fmt: skip
