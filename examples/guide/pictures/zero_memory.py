#!/usr/bin/env python3
"""Writes zero_memory.svg beside itself: what a rank holds with a whole optimizer, and with a ShardedOptimizer's two stages.

  python3 -B examples/guide/pictures/zero_memory.py            writes the picture
  python3 -B examples/guide/pictures/zero_memory.py --check    exits with 1 where the picture is not what this script draws
"""

import sys

import svg

WIDTH, HEIGHT, TOP, BOTTOM, BAR = 720, 258, 66, 206, 50
MODELS = [("resnet50", 2, "ResNet-50, 2 ranks"), ("resnet50", 4, "ResNet-50, 4 ranks"), ("gpt2-124m", 2, "GPT-2 124M, 2 ranks")]
STAGES = ["dtrain AdamW on every rank", "dtrain ShardedOptimizer, AdamW", "dtrain zero::Gradients, AdamW"]
PARTS = [(svg.GREY, "weights"), (svg.AMBER, "gradients"), (svg.BLUE, "optimizer state (AdamW)")]


def megabytes(model, ranks):
    """Of each stage: weights, gradients, state. AdamW's whole state has 8 bytes for each weight, which has 4."""
    rows = {row.what: row for row in svg.rows(svg.result("sharded.md"))
            if row.facts.get("model") == model and row.ranks == ranks and "gradient_bytes" in row.facts}
    weights = rows[STAGES[0]].fact("state_bytes") / 2
    return [[number / 1e6 for number in (weights, rows[stage].fact("gradient_bytes"), rows[stage].fact("state_bytes"))]
            for stage in STAGES]


def draw():
    picture = svg.Picture(WIDTH, HEIGHT)
    picture.title(18, "MB on each rank: without sharding (stage 0), and with a ShardedOptimizer")
    for (colour, words), x in zip(PARTS, (8, 88, 178)):
        picture.legend(x, 40, colour, words)
    for column, (model, ranks, name) in enumerate(MODELS):
        x = 26 + column * 240
        stages = megabytes(model, ranks)
        for at, parts in enumerate(stages):
            left, y = x + at * (BAR + 12), BOTTOM
            for value, (colour, _) in zip(parts, PARTS):
                height = (BOTTOM - TOP) * value / sum(stages[0])
                picture.box(left, y - height, BAR, height - 1, colour)
                y -= height
            picture.text(left + BAR / 2, y - 4, f"{sum(parts):,.0f}", "middle")
            picture.text(left + BAR / 2, BOTTOM + 18, f"stage {at}", "middle")
        picture.line(x - 8, BOTTOM, x + 3 * (BAR + 12) - 4, BOTTOM)
        picture.text(x + 1.5 * BAR + 12, BOTTOM + 40, name, "middle", bold=True)
    return picture.svg()


if __name__ == "__main__":
    sys.exit(svg.main(__file__, draw))
