#!/usr/bin/env python3
"""Dense decode of one model shape in PyTorch, a step in one CUDA graph: what `oasis bench decode --modes dense` is compared with.

    python -m pip install torch
    python tests/peers/dense_torch.py --config config.json --batch 16 --context 16384 [--json out.json]

Random bf16 weights of the sizes of a Hugging Face config.json (llama, qwen2, qwen3): fused QKV, RMSNorm, RoPE, q/k norm where the
family has it, scaled-dot-product attention with grouped heads over a static cache of batch x context, SwiGLU, output head, argmax.
Every backend of SDPA that takes the shape is tried, cuDNN's first, and the fastest is kept. Prints milliseconds a step (median, 90 and 99
percentile) and tokens a second; the floor is the bytes of weights and cache over the read bandwidth measured in the same run.
"""

import argparse
import json
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


class Shape:
    def __init__(self, path):
        with open(path) as file:
            c = json.load(file)
        self.family = c.get("model_type", "llama")
        if self.family not in ("llama", "qwen2", "qwen3"):
            sys.exit(f"{path}: model_type {self.family}; known: llama, qwen2, qwen3")
        self.layers, self.hidden = c["num_hidden_layers"], c["hidden_size"]
        self.inner, self.vocab = c["intermediate_size"], c["vocab_size"]
        self.heads = c["num_attention_heads"]
        self.kv_heads = c.get("num_key_value_heads") or self.heads
        self.dim = c.get("head_dim") or self.hidden // self.heads
        self.eps, self.theta = c.get("rms_norm_eps", 1e-6), c.get("rope_theta", 1e4)
        self.tied = c.get("tie_word_embeddings", False)


def weight(rows, cols, gain=1.0):
    return (torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16)) * (gain / cols**0.5)


class Layer:
    def __init__(self, s, batch, context):
        ones = lambda n: torch.ones(n, device="cuda", dtype=torch.bfloat16)
        branch = 1 / (2 * s.layers) ** 0.5
        self.attn_norm, self.mlp_norm = ones(s.hidden), ones(s.hidden)
        self.qkv = weight((s.heads + 2 * s.kv_heads) * s.dim, s.hidden)
        self.bias = torch.zeros(self.qkv.shape[0], device="cuda", dtype=torch.bfloat16) if s.family == "qwen2" else None
        self.q_norm, self.k_norm = (ones(s.dim), ones(s.dim)) if s.family == "qwen3" else (None, None)
        self.out = weight(s.hidden, s.heads * s.dim, branch)
        self.gate_up, self.down = weight(2 * s.inner, s.hidden), weight(s.hidden, s.inner, branch)
        cache = (batch, s.kv_heads, context, s.dim)
        self.k = torch.randn(cache, device="cuda", dtype=torch.bfloat16)
        self.v = torch.randn(cache, device="cuda", dtype=torch.bfloat16)


class Model:
    def __init__(self, s, batch, context):
        self.s, self.batch, self.context = s, batch, context
        self.embedding = weight(s.vocab, s.hidden, s.hidden**0.5)
        self.head = self.embedding if s.tied else weight(s.vocab, s.hidden)
        self.norm = torch.ones(s.hidden, device="cuda", dtype=torch.bfloat16)
        self.layers = [Layer(s, batch, context) for _ in range(s.layers)]
        # The newest token stands in the cache's last place; its position is the same in every step.
        half = torch.arange(0, s.dim, 2, device="cuda", dtype=torch.float32) / s.dim
        angle = (context - 1) * s.theta**-half
        self.cos = torch.cat([angle.cos()] * 2).to(torch.bfloat16)
        self.sin = torch.cat([angle.sin()] * 2).to(torch.bfloat16)
        self.tokens = torch.randint(0, s.vocab, (batch,), device="cuda")

    def rope(self, x):
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin

    def attend(self, layer, x):
        s = self.s
        qkv = F.linear(F.rms_norm(x, (s.hidden,), layer.attn_norm, s.eps), layer.qkv, layer.bias)
        qkv = qkv.view(self.batch, s.heads + 2 * s.kv_heads, 1, s.dim)
        q, k, v = qkv.split([s.heads, s.kv_heads, s.kv_heads], 1)
        if layer.q_norm is not None:
            q, k = (F.rms_norm(t, (s.dim,), w, s.eps) for t, w in ((q, layer.q_norm), (k, layer.k_norm)))
        layer.k[:, :, -1:].copy_(self.rope(k))
        layer.v[:, :, -1:].copy_(v)
        out = F.scaled_dot_product_attention(self.rope(q), layer.k, layer.v, enable_gqa=s.heads != s.kv_heads)
        return F.linear(out.reshape(self.batch, s.heads * s.dim), layer.out)

    def step(self):
        s = self.s
        x = F.embedding(self.tokens, self.embedding)
        for layer in self.layers:
            x = x + self.attend(layer, x)
            gate, up = F.linear(F.rms_norm(x, (s.hidden,), layer.mlp_norm, s.eps), layer.gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        logits = F.linear(F.rms_norm(x, (s.hidden,), self.norm, s.eps), self.head)
        self.tokens.copy_(logits.argmax(-1))

    def bytes(self):
        """Weights that a step reads, and cache."""
        of = lambda *ts: sum(t.numel() * t.element_size() for t in ts)
        weights = of(self.head) + sum(of(l.qkv, l.out, l.gate_up, l.down) for l in self.layers)
        return weights, sum(of(l.k, l.v) for l in self.layers)


def capture(model):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model.step()
    return graph


def times(graph, steps, warmup):
    """Milliseconds of each replay, the host waiting for every one, as a decode loop that reads its tokens does."""
    out = []
    for i in range(warmup + steps):
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        if i >= warmup:
            out.append(1e3 * (time.perf_counter() - start))
    return sorted(out)


def read_bandwidth():
    x = torch.ones(1 << 28, device="cuda", dtype=torch.float32)
    best = 0.0
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        x.sum()
        end.record()
        torch.cuda.synchronize()
        best = max(best, x.numel() * 4 / begin.elapsed_time(end) / 1e6)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--json")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device: this script times one")
    torch.manual_seed(0)
    gb_s = read_bandwidth()
    with torch.inference_mode():
        model = Model(Shape(args.config), args.batch, args.context)
        backends = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
        best = None
        for backend in backends:
            try:
                with sdpa_kernel([backend]):
                    graph = capture(model)
                    found = times(graph, args.steps, args.warmup)
            except RuntimeError as error:
                print(f"{backend.name}: {str(error).splitlines()[0]}", file=sys.stderr)
                continue
            print(f"{backend.name}: {found[len(found) // 2]:.3f} ms", file=sys.stderr)
            if best is None or found[len(found) // 2] < best[1][len(best[1]) // 2]:
                best = (backend.name, found)
    if best is None:
        sys.exit("no backend of SDPA takes this shape")
    name, found = best
    weights, cache = model.bytes()
    at = lambda p: found[min(len(found) - 1, int(p * len(found)))]
    floor = (weights + cache) / gb_s / 1e6
    result = {
        "torch": torch.__version__, "device": torch.cuda.get_device_name(), "sdpa": name,
        "batch": args.batch, "context": args.context, "step_ms_p50": at(0.5), "step_ms_p90": at(0.9),
        "step_ms_p99": at(0.99), "tok_s": args.batch * 1e3 * len(found) / sum(found),
        "weights_bytes": weights, "kv_bytes": cache, "read_gb_s": gb_s, "floor_ms": floor,
    }
    print(
        f"PyTorch {torch.__version__}, {name}, batch {args.batch} x {args.context}: {at(0.5):.3f} ms a step "
        f"(p90 {at(0.9):.3f}, p99 {at(0.99):.3f}), {result['tok_s']:.1f} tok/s; floor {floor:.3f} ms at {gb_s:.0f} GB/s"
    )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
