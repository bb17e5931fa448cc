#!/usr/bin/env python3
"""Reads a checkpoint of dtrain's, also one of a training with LibTorch, into PyTorch.

  read_checkpoint.py FILE    prints each tensor's name, type, shape and first elements

  tensors = read_checkpoint.load(FILE)
  net.load_state_dict({name[4:]: tensor for name, tensor in tensors.items() if name.startswith("net.")})
  torch.set_rng_state(tensors["rng"][rank])
"""

import hashlib
import struct
import sys

import torch

MAGIC = b"dtrain checkpoint 1\n"
TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8]


def load(path):
    """The tensors by name. Raises ValueError for a file that is no checkpoint or is damaged."""
    with open(path, "rb") as file:
        content = bytearray(file.read())
    if not content.startswith(MAGIC) or hashlib.sha256(content[:-32]).digest() != content[-32:]:
        raise ValueError(f"{path} is no whole checkpoint of dtrain's")
    position = len(MAGIC)

    def take(layout):
        nonlocal position
        position += struct.calcsize(layout)
        return struct.unpack_from(layout, content, position - struct.calcsize(layout))

    _, count = take("<II")
    listed = []
    for _ in range(count):
        name = take(f"<{take('<I')[0]}s")[0].decode()
        dtype, extents = take("<BB")
        listed.append((name, TYPES[dtype - 1], take(f"<{extents}q")))
    tensors = {}
    for name, dtype, shape in listed:
        made = torch.empty(shape, dtype=dtype)
        size = made.numel() * made.element_size()
        if size:
            made = torch.frombuffer(content, dtype=torch.uint8, count=size, offset=position).clone()
            made = made.view(dtype).reshape(shape)
        tensors[name] = made
        position += size
    return tensors


if __name__ == "__main__":
    for title, tensor in load(sys.argv[1]).items():
        first = " ".join(value.hex() if tensor.is_floating_point() else str(value) for value in tensor.flatten()[:16].tolist())
        print(title, tensor.dtype, list(tensor.shape), first)
