#!/usr/bin/env python3
"""Exports what a Hugging Face model's decode would feed Oasis's policies: keys, queries and tokens, one shard a prompt.

    python -m pip install torch transformers          # and accelerate, gguf for .gguf files
    python tests/peers/export_trace.py --model HuggingFaceTB/SmolLM2-135M-Instruct --prompt book.txt --new 64 -o exported
    oasis trace import exported -o my-trace
    oasis trace replay my-trace --predictor oracle,previous-token --budget 256,512

Any causal model whose attention rotates queries and keys by a function `apply_rotary_pos_emb` of its modeling file works (Llama, Mistral, Qwen2,
Qwen3, ...): that function is wrapped, and its results are what is stored. The prompt is prefilled and the answer decoded greedily with
dense attention. With --drafts ideal every step has a second row, the token that comes next with its query: what a perfect draft would
have ranked with, which lets predictors that look ahead be replayed (an upper bound, no method).

With --shard FILE (a dense recording of `oasis trace record`) prompt and answer are that file's, and queries and keys are compared with it: exit
code 1 if they differ by more than the rounding of bf16 weights explains.
"""

import argparse
import inspect
import json
import pathlib
import struct
import sys

NONE = 2**32 - 1
# Norm of the difference over the norm: bf16 keys and queries of the same weights, layer after layer.
CLOSE = 0.03


class Hook:
    """Collects the rotated queries and keys of every layer of a forward pass."""

    def __init__(self, model):
        attentions = {type(m) for m in model.modules() if type(m).__name__.endswith("Attention")}
        modules = {sys.modules[a.__module__] for a in attentions}
        self.modules = [m for m in modules if hasattr(m, "apply_rotary_pos_emb")]
        if not self.modules:
            sys.exit(f"{type(model).__name__}: no attention with apply_rotary_pos_emb; this model can't be exported")
        self.layers = []
        for module in self.modules:
            rotate = module.apply_rotary_pos_emb

            def wrapped(*args, _rotate=rotate, **kwargs):
                q, k = _rotate(*args, **kwargs)
                self.layers.append((q[0].detach().bfloat16().cpu(), k[0].detach().bfloat16().cpu()))
                return q, k

            module.apply_rotary_pos_emb = wrapped

    def take(self, want):
        layers, self.layers = self.layers, []
        if len(layers) != want:
            sys.exit(f"a forward pass rotated {len(layers)} times in a model of {want} layers; this model can't be exported")
        return layers


def load(args):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = pathlib.Path(args.model)
    kwargs = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    name = str(path.parent) if kwargs else args.model
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, **kwargs).eval().to(args.device)
    return model, AutoTokenizer.from_pretrained(name, **kwargs)


def decode(model, hook, prompt, new, forced):
    """Rotated (query, key) of each layer for the prompt and for `new` + 1 tokens after it, and these tokens."""
    import torch
    from transformers import DynamicCache

    layers = model.config.num_hidden_layers
    # The argument's name changed.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    cache = {name: DynamicCache(config=model.config), "use_cache": True}
    with torch.inference_mode():
        out = model(torch.tensor([prompt], device=model.device), **cache)
        prefill, rows, tokens = hook.take(layers), [], []
        for step in range(new + 1):
            best = int(out.logits[0, -1].argmax())
            tokens.append(forced[step] if step < len(forced) else best)
            out = model(torch.tensor([[tokens[-1]]], device=model.device), **cache)
            rows.append(hook.take(layers))
        tokens.append(int(out.logits[0, -1].argmax()))
    return prefill, rows, tokens


def shard(model, prefill, rows, tokens, prompt, new, drafts):
    """Tensors of a shard, by name, in the layout of docs/traces.md."""
    import torch

    u32 = lambda values: torch.tensor(values, dtype=torch.int64)
    order, row_first, parents = [], [0], []
    for step in range(new):
        order += [step, step + 1] if drafts else [step]
        parents += [0, 0] if drafts else [0]
        row_first.append(len(order))
    of_row = lambda part: torch.stack([torch.stack([layer[part][:, 0] for layer in rows[r]]) for r in order])
    return {
        "prompt_tokens": u32(prompt),
        "prompt_keys": torch.stack([k for _, k in prefill]),
        "prompt_queries": torch.stack([q[:, -1] for q, _ in prefill]),
        "row_first": u32(row_first),
        "tokens": u32([tokens[r] for r in order]),
        "parents": u32(parents),
        "sampled": u32([tokens[r + 1] for r in order]),
        "forced": u32([tokens[step + 1] for step in range(new)]),
        "queries": of_row(0),
        "keys": of_row(1),
    }


def metadata(model, tensors, tokens, sample, new):
    _, kv_heads, prompt, head_dim = tensors["prompt_keys"].shape
    layers, heads, _ = tensors["prompt_queries"].shape
    numbers = {
        "layers": layers, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
        "vocab": model.config.vocab_size, "max_positions": model.config.max_position_embeddings,
        "length": prompt + new, "first": tokens[0], "max_new": new, "seed": 0,
    }
    return {"oasis_trace": "1", "sample": sample, "model": model.name_or_path or "", **{k: str(v) for k, v in numbers.items()}}


def write(path, tensors, meta):
    """A safetensors file: length, table, data."""
    import torch

    table, data = {"__metadata__": meta}, b""
    for name, tensor in tensors.items():
        if tensor.dtype == torch.bfloat16:
            kind, raw = "BF16", tensor.contiguous().view(torch.int16).numpy().tobytes()
        else:
            kind, raw = "U32", struct.pack(f"<{tensor.numel()}I", *tensor.tolist())
        table[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)


def read(path):
    """The tensors of a shard."""
    import torch

    raw = bytearray(pathlib.Path(path).read_bytes())
    end = 8 + int.from_bytes(raw[:8], "little")
    table, kinds = json.loads(raw[8:end]), {"BF16": torch.bfloat16, "U32": torch.int32, "F32": torch.float32}
    table.pop("__metadata__")
    out = {}
    for name, entry in table.items():
        begin, stop = entry["data_offsets"]
        part = raw[end + begin : end + stop]
        flat = torch.frombuffer(part, dtype=kinds[entry["dtype"]]) if part else torch.zeros(0)
        out[name] = flat.reshape(entry["shape"])
    return out


def compare(own, theirs):
    good = True
    for name in ["prompt_keys", "prompt_queries", "queries", "keys"]:
        a, b = own[name].float(), theirs[name].float()
        error = float((a - b).norm() / b.norm())
        good &= a.shape == b.shape and error < CLOSE
        print(f"{name:<15} {str(list(a.shape)):<22} differs from Oasis by {error:.4f} of its norm (limit {CLOSE})")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a folder, a .gguf file, or a name on the hub")
    parser.add_argument("--prompt", action="append", default=[], help="a text file; may be given more than once")
    parser.add_argument("--shard", help="take prompt and answer from this shard, and compare with it")
    parser.add_argument("--length", type=int, default=4096, help="most tokens of a prompt; its beginning is kept")
    parser.add_argument("--new", type=int, default=64, help="decode steps")
    parser.add_argument("--drafts", choices=["none", "ideal"], default="none")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-o", "--output", required=True, help="new folder of the shards")
    args = parser.parse_args()
    if bool(args.prompt) == bool(args.shard):
        parser.error("give --prompt FILE or --shard FILE")
    output = pathlib.Path(args.output)
    output.mkdir(parents=True)
    model, tokenizer = load(args)
    hook, good = Hook(model), True
    for i, source in enumerate(args.prompt or [args.shard]):
        new, forced, theirs = args.new, [], None
        if args.shard:
            theirs = read(source)
            prompt, forced = theirs["prompt_tokens"].tolist(), theirs["tokens"].tolist()
            new = len(forced)
        else:
            prompt = tokenizer(pathlib.Path(source).read_text()).input_ids[: args.length]
        prefill, rows, tokens = decode(model, hook, prompt, new, forced)
        tensors = shard(model, prefill, rows, tokens, prompt, new, args.drafts == "ideal")
        name = pathlib.Path(source).stem
        write(output / f"{i:05}.safetensors", tensors, metadata(model, tensors, tokens, name, new))
        print(f"{name}: {len(prompt)} prompt tokens, {new} steps")
        good &= theirs is None or compare(tensors, theirs)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
