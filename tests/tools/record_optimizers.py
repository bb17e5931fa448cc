#!/usr/bin/env python3
"""Prints tests/unit/public_interface/sharded/optimizer_values.hpp: the weights after each of ten steps of PyTorch's optimizers.

  /usr/bin/python3 tests/tools/record_optimizers.py > tests/unit/public_interface/sharded/optimizer_values.hpp

Needs PyTorch (Debian's python3-torch, 1.13, made the committed file). PyTorch has no LAMB: its values are computed here,
in f64, by algorithm 2 of You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR
2020, with the identity for phi.
"""

import math

import torch

ELEMENTS = 5
STEPS = 10


def first_weight(k):  # exact in f32, as the gradients
    return (k - 2) / 4


def gradient(step, k):
    return ((7 * step + 5 * k) % 11 - 5) / 8


def pytorch(make):
    weights = torch.tensor([first_weight(k) for k in range(ELEMENTS)], dtype=torch.float32, requires_grad=True)
    optimizer = make([weights])
    rows = []
    for step in range(1, STEPS + 1):
        weights.grad = torch.tensor([gradient(step, k) for k in range(ELEMENTS)], dtype=torch.float32)
        optimizer.step()
        rows.append(weights.detach().tolist())
    return rows


def lamb(rate, weight_decay, beta1=0.9, beta2=0.999, epsilon=1e-6):
    x = [first_weight(k) for k in range(ELEMENTS)]
    m = [0.0] * ELEMENTS
    v = [0.0] * ELEMENTS
    rows = []
    for t in range(1, STEPS + 1):
        u = []
        for k in range(ELEMENTS):
            g = gradient(t, k)
            m[k] = beta1 * m[k] + (1 - beta1) * g
            v[k] = beta2 * v[k] + (1 - beta2) * g * g
            r = (m[k] / (1 - beta1**t)) / (math.sqrt(v[k] / (1 - beta2**t)) + epsilon)
            u.append(r + weight_decay * x[k])
        ratio = math.hypot(*x) / math.hypot(*u)
        x = [x[k] - rate * ratio * u[k] for k in range(ELEMENTS)]
        rows.append(list(x))
    return rows


RUNS = {
    "sgd": pytorch(lambda w: torch.optim.SGD(w, lr=0.1, weight_decay=0.05)),
    "momentum": pytorch(lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9, weight_decay=0.05)),
    "nesterov": pytorch(lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9, weight_decay=0.05, nesterov=True)),
    "adam": pytorch(lambda w: torch.optim.Adam(w, lr=0.05, betas=(0.8, 0.95), eps=0.01, weight_decay=0.05)),
    "adamw": pytorch(lambda w: torch.optim.AdamW(w, lr=0.05, weight_decay=0.1)),
    "rmsprop": pytorch(
        lambda w: torch.optim.RMSprop(w, lr=0.02, alpha=0.9, eps=0.01, weight_decay=0.05, momentum=0.8)
    ),
    "adagrad": pytorch(
        lambda w: torch.optim.Adagrad(
            w, lr=0.1, lr_decay=0.1, weight_decay=0.05, initial_accumulator_value=0.25, eps=0.01
        )
    ),
    "lamb": lamb(rate=0.05, weight_decay=0.1),
}

print(f"""#pragma once
/// @file
/// Weights after each of ten steps of PyTorch {torch.__version__}'s optimizers, and of LAMB as its paper has it. Made by
/// tests/tools/record_optimizers.py, which has the options.

namespace optimizer_values {{

constexpr int elements = {ELEMENTS};
constexpr int steps = {STEPS};
using Values = float[steps][elements];

/// Element k before the first step.
constexpr float first_weight(int k) {{
  return static_cast<float>(k - 2) / 4;
}}
/// Of step 1, 2, ...
constexpr float gradient(int step, int k) {{
  return static_cast<float>((7 * step + 5 * k) % 11 - 5) / 8;
}}
""")
for name, rows in RUNS.items():
    print(f"constexpr Values {name} = {{")
    for row in rows:
        print("    {" + ", ".join(f"{value:.9e}F" for value in row) + "},")
    print("};")
print("\n}  // namespace optimizer_values")
