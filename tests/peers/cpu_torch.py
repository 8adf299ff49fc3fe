#!/usr/bin/env python3
"""SmolLM2-135M on the CPU: PyTorch and Oasis, prefill and dense decode, in one run on the same cores.

    python -m pip install torch==2.6.0 transformers gguf numpy
    oasis fetch smollm2
    python tests/peers/cpu_torch.py --oasis target/release/oasis [--tokens 2048] [--new 48] [--threads 2]

Both read the same GGUF file, in f32 arithmetic. PyTorch runs transformers' Llama with SDPA attention and a static
schedule of one token a step; its better run of two counts, and of Oasis the mean of three. Prints a table; exit code 1 if Oasis
is slower in either column.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time


def gguf_path():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    found = sorted((pathlib.Path(cache) / "oasis" / "models").glob("*SmolLM2*.gguf"))
    found += sorted((pathlib.Path(cache) / "oasis" / "models").glob("*smollm2*.gguf"))
    if not found:
        sys.exit("SmolLM2 is not in the cache; run `oasis fetch smollm2`")
    return found[0]


def torch_speed(path, tokens, new, threads):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, torch_dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (1, tokens), generator=generator)
    best = {"prefill": 0.0, "decode": 0.0}
    with torch.inference_mode():
        for _ in range(3):  # the first warms up
            start = time.perf_counter()
            out = model(ids, use_cache=True, logits_to_keep=1)
            prefill = time.perf_counter() - start
            start = time.perf_counter()
            for _ in range(new):
                token = out.logits[:, -1].argmax(-1, keepdim=True)
                out = model(token, past_key_values=out.past_key_values, use_cache=True)
            decode = time.perf_counter() - start
            best["prefill"] = max(best["prefill"], tokens / prefill)
            best["decode"] = max(best["decode"], new / decode)
    return best


CONFIG = """
[run]
name = "speed"
[model]
path = "smollm2"
[[task]]
name = "fidelity"
length = {length}
continuation = {new}
samples = 3
[decode]
budget = 1024
[[cell]]
mode = "dense"
[[cell]]
label = "resident-sparse"
mode = "resident-sparse"
predictor = "previous-token"
[[cell]]
label = "staged"
mode = "staged"
predictor = "previous-token"
"""


def oasis_speed(binary, tokens, new):
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "speed.toml"
        config.write_text(CONFIG.format(length=tokens + new, new=new))
        command = [binary, "run", "-c", str(config), "-o", str(pathlib.Path(folder) / "runs"), "--jobs", "1"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        results = next(pathlib.Path(folder).glob("runs/*/results.json"))
        return json.loads(results.read_text())


def speeds(results):
    """Prefill and decode rates of every cell, means over samples."""
    out = {}
    for row in results["machine"]["rows"]:
        value = {k: v["value"] for k, v in row["metrics"].items()}
        out[row["cell"]] = (value["prefill_tok_s"], value["decode_tok_s"])
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--oasis", required=True)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--new", type=int, default=48)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    theirs = torch_speed(gguf_path(), args.tokens, args.new, args.threads)
    ours = speeds(oasis_speed(args.oasis, args.tokens, args.new))
    print(f"SmolLM2-135M, f32 arithmetic, {args.threads} threads, {args.tokens} tokens, {args.new} new; tok/s")
    print(f"{'':<18}{'prefill':>10}{'decode':>10}")
    print(f"{'PyTorch':<18}{theirs['prefill']:>10.1f}{theirs['decode']:>10.1f}")
    for name, (prefill, decode) in ours.items():
        print(f"{'Oasis ' + name:<24}{prefill:>4.1f}{decode:>10.1f}")
    prefill, decode = ours["dense"]
    sys.exit(0 if prefill >= theirs["prefill"] and decode >= theirs["decode"] else 1)


if __name__ == "__main__":
    main()
