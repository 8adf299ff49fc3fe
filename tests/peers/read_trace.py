#!/usr/bin/env python3
"""Reads a shard of an Oasis trace with numpy alone (five lines), and prints what is in it.

    python tests/peers/read_trace.py nano-trace/00000.safetensors
"""

import json
import sys

import numpy as np

raw = open(sys.argv[1], "rb").read()
end = 8 + int.from_bytes(raw[:8], "little")
head, kinds = json.loads(raw[8:end]), {"U32": "<u4", "F32": "<f4", "BF16": "<u2"}
get = lambda n: np.frombuffer(raw[end:], kinds[head[n]["dtype"]], np.prod(head[n]["shape"], dtype=int), head[n]["data_offsets"][0]).reshape(head[n]["shape"])
f32 = lambda bf16: (bf16.astype("<u4") << 16).view("<f4")

print(json.dumps(head.pop("__metadata__"), sort_keys=True))
for name in head:
    array = get(name)
    values = f32(array) if head[name]["dtype"] == "BF16" else array
    print(f"{name:<15} {head[name]['dtype']:<5} {str(list(array.shape)):<20} mean {values.mean() if values.size else 0:.4g}")
