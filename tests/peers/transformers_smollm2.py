#!/usr/bin/env python3
"""SmolLM2-135M in Hugging Face transformers: greedy decode speed, and the tokens that Oasis must give too.

    python -m pip install torch transformers gguf numpy
    oasis fetch smollm2
    python tests/peers/transformers_smollm2.py [--oasis target/release/oasis] [--tokens 2048] [--new 64] [--device cuda|cpu]

Both read the same GGUF file. Prints tokens a second of a plain greedy loop. With --oasis, Oasis decodes a prompt of its task `needle` densely, and
the two answers are compared: exit code 1 if the first tokens differ and transformers' two best logits are no near-tie.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

# Two logits this close may change places between bf16 weights and their f32 copies.
NEAR_TIE = 0.05

CONFIG = """
[run]
name = "peer"
protocol = "decode"
[model]
path = "smollm2"
[[task]]
name = "needle"
length = {tokens}
samples = 1
[[cell]]
mode = "dense"
"""


def gguf_path():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    found = [p for p in sorted((pathlib.Path(cache) / "oasis" / "models").glob("*.gguf")) if "smollm2" in p.name.lower()]
    if not found:
        sys.exit("SmolLM2 is not in the cache; run `oasis fetch smollm2`")
    return found[0]


def load(path, device):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    kwargs = dict(gguf_file=path.name, torch_dtype=dtype, attn_implementation="sdpa")
    model = AutoModelForCausalLM.from_pretrained(str(path.parent), **kwargs).eval().to(device)
    return model, AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


def greedy(model, ids, new):
    """Tokens, margins of the best over the second logit, and seconds of the decode without the prefill."""
    import torch

    tokens, margins = [], []
    with torch.inference_mode():
        out = model(ids, use_cache=True, logits_to_keep=1)
        if ids.is_cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(new):
            best = out.logits[0, -1].float().topk(2)
            tokens.append(int(best.indices[0]))
            margins.append(float(best.values[0] - best.values[1]))
            out = model(best.indices[:1].view(1, 1), past_key_values=out.past_key_values, use_cache=True)
        if ids.is_cuda:
            torch.cuda.synchronize()
    return tokens, margins, time.perf_counter() - start


def oasis_answer(binary, tokens):
    """The first prompt as Oasis gives it to the model, its number of tokens, and the tokens of the dense answer."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "peer.toml").write_text(CONFIG.format(tokens=tokens))
        command = [binary, "run", "-c", str(folder / "peer.toml"), "-o", str(folder / "runs")]
        written = subprocess.run(command + ["--write-out"], check=True, stdout=subprocess.PIPE, text=True).stdout
        head = re.search(r"^--- prefilled densely \((\d+) tokens\)$", written, re.M)
        text = written[head.end() + 1 : written.index("\n--- answer:", head.end())]
        sample = next(folder.glob("runs/*/samples.jsonl")).read_text().splitlines()[0]
        return text, int(head.group(1)), json.loads(sample)["generated"]


def compare(model, tokenizer, args):
    """Whether Oasis's dense answer begins as transformers' does."""
    text, n, theirs = oasis_answer(args.oasis, args.tokens)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids.to(args.device)
    if ids.shape[1] != n:
        print(f"the tokenizers differ: {ids.shape[1]} tokens here, {n} in Oasis")
        return False
    own, margins, _ = greedy(model, ids, len(theirs))
    same = next((i for i, (a, b) in enumerate(zip(own, theirs)) if a != b), len(theirs))
    print(f"Oasis and transformers give the same first {same} of {len(theirs)} tokens after a prompt of {n}")
    if same == 0:
        print(f"first tokens {own[0]} and {theirs[0]}; transformers' two best logits lie {margins[0]:.4f} apart")
    return same > 0 or margins[0] < NEAR_TIE


def main():
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--oasis", help="the program; without it only transformers is timed")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    path = gguf_path()
    model, tokenizer = load(path, args.device)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (1, args.tokens), generator=generator).to(args.device)
    best = max(args.new / greedy(model, ids, args.new)[2] for _ in range(3))
    print(f"transformers, SmolLM2-135M, {args.device}, batch 1 x {args.tokens}: {best:.1f} tok/s greedy")
    sys.exit(0 if args.oasis is None or compare(model, tokenizer, args) else 1)


if __name__ == "__main__":
    main()
