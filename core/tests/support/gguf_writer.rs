//! A writer of small GGUF files, and the small models as such files.

use super::fixture;
use half::bf16;
use safetensors::SafeTensors;
use std::collections::BTreeMap;

/// Collects metadata and tensors.
#[derive(Default, Clone)]
pub struct Writer {
    keys: Vec<(String, Vec<u8>)>,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

fn text(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes(), s.as_bytes()].concat()
}

fn typed(kind: u32, bytes: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes(), bytes].concat()
}

fn list(kind: u32, count: usize, items: Vec<u8>) -> Vec<u8> {
    typed(9, &[&kind.to_le_bytes()[..], &(count as u64).to_le_bytes(), &items].concat())
}

impl Writer {
    fn key(mut self, key: &str, value: Vec<u8>) -> Self {
        self.keys.retain(|(k, _)| k != key);
        self.keys.push((key.to_owned(), value));
        self
    }

    pub fn u32(self, key: &str, n: u32) -> Self {
        self.key(key, typed(4, &n.to_le_bytes()))
    }

    pub fn f32(self, key: &str, x: f32) -> Self {
        self.key(key, typed(6, &x.to_le_bytes()))
    }

    pub fn flag(self, key: &str, b: bool) -> Self {
        self.key(key, typed(7, &[b.into()]))
    }

    pub fn text(self, key: &str, s: &str) -> Self {
        self.key(key, typed(8, &text(s)))
    }

    pub fn texts(self, key: &str, items: &[String]) -> Self {
        self.key(key, list(8, items.len(), items.iter().flat_map(|s| text(s)).collect()))
    }

    pub fn i32s(self, key: &str, items: &[i32]) -> Self {
        self.key(key, list(5, items.len(), items.iter().flat_map(|n| n.to_le_bytes()).collect()))
    }

    pub fn without(mut self, key: &str) -> Self {
        self.keys.retain(|(k, _)| k != key);
        self.tensors.retain(|(n, ..)| n != key);
        self
    }

    /// A tensor; `shape` outermost first, `kind` ggml's type number.
    pub fn tensor(mut self, name: &str, shape: &[usize], kind: u32, data: Vec<u8>) -> Self {
        self.tensors.retain(|(n, ..)| n != name);
        let dims = shape.iter().rev().map(|d| *d as u64).collect();
        self.tensors.push((name.to_owned(), dims, kind, data));
        self
    }

    pub fn f32_tensor(self, name: &str, shape: &[usize], values: &[f32]) -> Self {
        self.tensor(name, shape, 0, values.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            out.extend(text(key));
            out.extend(value);
        }
        let mut at = 0u64;
        for (name, dims, kind, data) in &self.tensors {
            out.extend(text(name));
            out.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(at.to_le_bytes());
            at += (data.len() as u64).next_multiple_of(32);
        }
        for (.., data) in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(data);
        }
        out
    }
}

/// Names after `blk.N.`, keyed by those after `model.layers.N.`.
const LAYER: [(&str, &str); 14] = [
    ("input_layernorm.weight", "attn_norm.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.q_proj.bias", "attn_q.bias"),
    ("self_attn.k_proj.bias", "attn_k.bias"),
    ("self_attn.v_proj.bias", "attn_v.bias"),
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("post_attention_layernorm.weight", "ffn_norm.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
];

fn gguf_name(name: &str) -> String {
    match name {
        "model.embed_tokens.weight" => "token_embd.weight".into(),
        "model.norm.weight" => "output_norm.weight".into(),
        "lm_head.weight" => "output.weight".into(),
        _ => {
            let (layer, rest) = name.strip_prefix("model.layers.").unwrap().split_once('.').unwrap();
            let (_, gguf) = LAYER.iter().find(|(hf, _)| *hf == rest).unwrap();
            format!("blk.{layer}.{gguf}")
        }
    }
}

/// llama.cpp's order of a Llama's Q and K rows: the two halves of each head interleaved.
fn interleave(data: &[u8], heads: usize, rows: usize) -> Vec<u8> {
    let (row_bytes, d) = (data.len() / rows, rows / heads);
    let row = |r: usize| &data[r * row_bytes..][..row_bytes];
    let mut out = Vec::new();
    for head in 0..heads {
        for i in 0..d / 2 {
            out.extend(row(head * d + i));
            out.extend(row(head * d + d / 2 + i));
        }
    }
    out
}

/// A byte-level vocabulary of `VOCAB` tokens with merges, in a rule's own terms.
pub fn tokenizer(w: Writer, pre: &str, vocab: usize) -> Writer {
    // The byte-level alphabet writes printable ASCII as itself, a space as Ġ and a line feed as Ċ.
    let mut tokens: Vec<String> = (33..=126u8).map(|c| char::from(c).to_string()).collect();
    tokens.extend(
        ["Ġ", "Ċ", "he", "ll", "hell", "hello", "Ġw", "12", "123", "<s>", "</s>", "<tool>"].map(String::from),
    );
    tokens.truncate(vocab);
    let merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2", "12 3"].map(String::from);
    let kind = |t: &String| match t.as_str() {
        "<s>" | "</s>" => 3,
        "<tool>" => 4,
        _ => 1,
    };
    let kinds: Vec<i32> = tokens.iter().map(kind).collect();
    let id = |t: &str| tokens.iter().position(|x| x == t).unwrap() as u32;
    w.text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", pre)
        .u32("tokenizer.ggml.bos_token_id", id("<s>"))
        .u32("tokenizer.ggml.eos_token_id", id("</s>"))
        .texts("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .texts("tokenizer.ggml.merges", &merges)
        .text(
            "tokenizer.chat_template",
            "{% for m in messages %}{{ m.content.strip() }}{% endfor %}{{ eos_token }}",
        )
}

/// A small model of the fixtures as a GGUF file. Its Llama 3 scaling, which GGUF cannot say with 64
/// original positions, is left out.
pub fn small_model(name: &str, pre: &str) -> Writer {
    let folder = fixture(name);
    let config: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let n = |key: &str| config[key].as_u64().unwrap() as u32;
    let arch = config["model_type"].as_str().unwrap().to_owned();
    let key = |k: &str| format!("{arch}.{k}");
    let mut w = Writer::default()
        .text("general.architecture", &arch)
        .u32(&key("block_count"), n("num_hidden_layers"))
        .u32(&key("embedding_length"), n("hidden_size"))
        .u32(&key("feed_forward_length"), n("intermediate_size"))
        .u32(&key("attention.head_count"), n("num_attention_heads"))
        .u32(&key("attention.head_count_kv"), n("num_key_value_heads"))
        .u32(&key("context_length"), n("max_position_embeddings"))
        .f32(&key("rope.freq_base"), 10_000.0)
        .f32(&key("attention.layer_norm_rms_epsilon"), config["rms_norm_eps"].as_f64().unwrap() as f32);
    if let Some(d) = config.get("head_dim").and_then(|d| d.as_u64()) {
        w = w.u32(&key("attention.key_length"), d as u32).u32(&key("attention.value_length"), d as u32);
    }
    let file = std::fs::read(folder.join("model.safetensors")).unwrap();
    for (name, view) in SafeTensors::deserialize(&file).unwrap().tensors() {
        let (shape, gguf) = (view.shape().to_vec(), gguf_name(&name));
        w = if shape.len() == 1 {
            let values: Vec<f32> =
                view.data().chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect();
            w.f32_tensor(&gguf, &shape, &values)
        } else {
            let heads = match &gguf[gguf.len().saturating_sub(13)..] {
                g if arch == "llama" && g.ends_with("attn_q.weight") => n("num_attention_heads") as usize,
                g if arch == "llama" && g.ends_with("attn_k.weight") => n("num_key_value_heads") as usize,
                _ => 0,
            };
            let data =
                if heads > 0 { interleave(view.data(), heads, shape[0]) } else { view.data().to_vec() };
            w.tensor(&gguf, &shape, 30, data)
        };
    }
    tokenizer(w, pre, n("vocab_size") as usize)
}
