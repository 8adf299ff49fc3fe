//! Damaged and foreign checkpoints: each error names the file or the key, the value and the limit.

mod support;

use oasis_core::Error;
use oasis_core::checkpoint::Checkpoint;
use oasis_core::checkpoint::source::Source;
use serde_json::{Value, json};
use std::path::Path;
use support::gguf_writer::{Writer, small_model};
use support::{copy_of, fixture};

/// Opens a damaged copy of a small model; the error must hold every one of `wanted`.
fn refused(model: &str, wanted: &[&str], damage: impl Fn(&Path)) {
    let copy = copy_of(model);
    damage(copy.path());
    let error = Checkpoint::open(copy.path()).unwrap_err().to_string();
    for part in wanted {
        assert!(error.contains(part), "wanted {part:?} in: {error}");
    }
    assert!(error.contains(copy.path().to_str().unwrap()), "no path in: {error}");
}

fn edit_json(file: &Path, edit: impl Fn(&mut Value)) {
    let mut json: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    edit(&mut json);
    std::fs::write(file, json.to_string()).unwrap();
}

/// Rewrites the header of `model.safetensors`; the data stays.
fn edit_header(folder: &Path, edit: impl Fn(&mut Value)) {
    let file = folder.join("model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    edit(&mut header);
    let header = header.to_string().into_bytes();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(&file, [&length[..], &header, &bytes[8 + length_of(&bytes)..]].concat()).unwrap();
}

fn length_of(bytes: &[u8]) -> usize {
    u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize
}

fn edit_bytes(folder: &Path, edit: impl Fn(&mut Vec<u8>)) {
    let file = folder.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    edit(&mut bytes);
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn files_that_are_missing_are_named_with_the_way_out() {
    let remove = |name: &'static str| move |d: &Path| std::fs::remove_file(d.join(name)).unwrap();
    refused("llama3-tiny", &["config.json", "missing"], remove("config.json"));
    refused("llama3-tiny", &["tokenizer.json", "missing", "save_pretrained"], remove("tokenizer.json"));
    refused(
        "llama3-tiny",
        &["neither model.safetensors nor model.safetensors.index.json"],
        remove("model.safetensors"),
    );
    refused("llama3-tiny", &["pytorch_model.bin is not read"], |d| {
        std::fs::rename(d.join("model.safetensors"), d.join("pytorch_model.bin")).unwrap();
    });
    let error = Checkpoint::open(Path::new("/nowhere/at/all")).unwrap_err().to_string();
    assert!(error.contains("/nowhere/at/all") && error.contains(".gguf"), "{error}");
    let error = Checkpoint::open(&fixture("llama3-tiny").join("config.json")).unwrap_err().to_string();
    assert!(error.contains("config.json") && error.contains("GGUF"), "{error}");
}

#[test]
fn settings_that_are_not_computed_are_named() {
    let cases = [
        ("llama3-tiny", json!({"model_type": "mistral"}), &["mistral", "llama", "qwen2", "qwen3"][..]),
        (
            "llama3-tiny",
            json!({"architectures": ["LlamaForSequenceClassification"]}),
            &["LlamaForSequenceClassification"],
        ),
        ("llama3-tiny", json!({"hidden_act": "gelu"}), &["hidden_act", "gelu", "silu"]),
        ("llama3-tiny", json!({"attention_bias": true}), &["attention_bias"]),
        ("qwen3-tiny", json!({"attention_bias": true}), &["attention_bias"]),
        ("llama3-tiny", json!({"mlp_bias": true}), &["mlp_bias"]),
        ("qwen2-tiny", json!({"use_sliding_window": true}), &["use_sliding_window"]),
        (
            "qwen2-tiny",
            json!({"layer_types": ["full_attention", "sliding_attention"]}),
            &["sliding_attention"],
        ),
        ("llama3-tiny", json!({"partial_rotary_factor": 0.5}), &["partial_rotary_factor", "0.5"]),
        (
            "llama3-tiny",
            json!({"quantization_config": {"quant_method": "awq"}}),
            &["quantization_config", "awq"],
        ),
        (
            "llama3-tiny",
            json!({"rope_scaling": {"type": "yarn", "factor": 4.0}}),
            &["yarn", "linear", "llama3"],
        ),
        ("llama3-tiny", json!({"rope_parameters": {"rope_type": "longrope"}}), &["longrope"]),
        ("llama3-tiny", json!({"rope_scaling": {"rope_type": "linear"}}), &["no `factor`"]),
        (
            "llama3-tiny",
            json!({"rope_scaling": {"rope_type": "linear", "factor": 0.0}}),
            &["Linear", "above 0"],
        ),
    ];
    for (model, patch, wanted) in cases {
        refused(model, wanted, |d| {
            edit_json(&d.join("config.json"), |c| {
                c.as_object_mut().unwrap().extend(patch.as_object().unwrap().clone());
            })
        });
    }
}

#[test]
fn sizes_that_cannot_be_are_named_with_their_limits() {
    let cases = [
        ("hidden_size", json!(0), "hidden_size is 0"),
        ("num_hidden_layers", json!(1_000_000_000_000u64), "num_hidden_layers is 1000000000000; 1 to 4096"),
        ("num_hidden_layers", json!(4000), "too few for the configuration's 4000 layers"),
        ("num_key_value_heads", json!(3), "4 query heads are no multiple of 3"),
        ("num_attention_heads", json!(0), "num_attention_heads is 0"),
        ("head_dim", json!(15), "head_dim is 15"),
        ("vocab_size", json!(-1), "config.json"),
        ("vocab_size", json!("many"), "config.json"),
        ("rms_norm_eps", json!(0.0), "rms_norm_eps 0"),
        ("rope_theta", json!(-1.0), "rope_theta -1"),
        ("eos_token_id", json!([2, "x"]), "`eos_token_id` is neither"),
        ("bos_token_id", json!(128), "token id 128"),
        ("max_position_embeddings", json!(null), "config.json"),
    ];
    for (key, value, wanted) in cases {
        refused("llama3-tiny", &[wanted], |d| {
            edit_json(&d.join("config.json"), |c| {
                c.as_object_mut().unwrap().remove("rope_parameters");
                c[key] = value.clone();
            })
        });
    }
    refused("llama3-tiny", &["config.json", "line 1"], |d| {
        std::fs::write(d.join("config.json"), "{]").unwrap()
    });
    refused("llama3-tiny", &["generation_config.json", "200"], |d| {
        edit_json(&d.join("generation_config.json"), |c| c["eos_token_id"] = json!(200));
    });
}

#[test]
fn tensors_that_do_not_fit_are_named_with_both_shapes() {
    let norm = "model.layers.1.input_layernorm.weight";
    refused("llama3-tiny", &["model.safetensors", norm, "missing", "unexpected", "`other`"], |d| {
        edit_header(d, |h| h["other"] = h.as_object_mut().unwrap().remove(norm).unwrap());
    });
    refused("llama3-tiny", &["model.layers.0.mlp.up_proj.weight", "[64, 128]", "[128, 64]"], |d| {
        edit_header(d, |h| h["model.layers.0.mlp.up_proj.weight"]["shape"] = json!([64, 128]));
    });
    refused("qwen2-tiny", &["model.norm.weight", "[2, 32]", "[64]"], |d| {
        edit_header(d, |h| h["model.norm.weight"]["shape"] = json!([2, 32]));
    });
    refused("qwen2-tiny", &["q_proj.bias", "unexpected"], |d| {
        edit_json(&d.join("config.json"), |c| {
            c["model_type"] = json!("llama");
            c["architectures"] = json!(["LlamaForCausalLM"]);
        })
    });
    refused(
        "qwen3-tiny",
        &["vocab", "128", "lm_head"].map(|s| if s == "vocab" { "embed_tokens" } else { s }),
        |d| {
            edit_json(&d.join("config.json"), |c| c["vocab_size"] = json!(130));
        },
    );
    // More than eight problems are counted, not listed.
    refused("llama3-tiny", &["and 1", "more"], |d| {
        edit_json(&d.join("config.json"), |c| c["hidden_size"] = json!(72));
    });
}

#[test]
fn known_harmless_extras_are_let_through() {
    let copy = copy_of("qwen2-tiny");
    edit_bytes(copy.path(), |bytes| {
        let length = length_of(bytes);
        let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        let end = bytes.len() - 8 - length;
        header["model.layers.0.self_attn.rotary_emb.inv_freq"] =
            json!({"dtype": "F32", "shape": [8], "data_offsets": [end, end + 32]});
        header["lm_head.weight"] =
            json!({"dtype": "BF16", "shape": [128, 64], "data_offsets": [end + 32, end + 32 + 128 * 64 * 2]});
        let data = [&bytes[8 + length..], &vec![0; 32 + 128 * 64 * 2]].concat();
        let header = header.to_string().into_bytes();
        *bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    });
    assert!(Checkpoint::open(copy.path()).is_ok());
    // The same tensor is not harmless where the head is not tied to the embedding.
    edit_json(&copy.path().join("config.json"), |c| c["model_type"] = json!("llama"));
    assert!(Checkpoint::open(copy.path()).is_err());
}

#[test]
fn damaged_safetensors_say_what_and_where() {
    let q = "model.layers.0.self_attn.q_proj.weight";
    refused("llama3-tiny", &["model.safetensors", "truncated"], |d| {
        edit_bytes(d, |b| b.truncate(b.len() - 1))
    });
    refused(
        "llama3-tiny",
        &["truncated", "100 bytes"].map(|s| if s == "100 bytes" { "header" } else { s }),
        |d| {
            edit_bytes(d, |b| b.truncate(100));
        },
    );
    refused("llama3-tiny", &["3 bytes are too few"], |d| edit_bytes(d, |b| b.truncate(3)));
    refused("llama3-tiny", &["0 bytes are too few"], |d| edit_bytes(d, |b| b.clear()));
    refused("llama3-tiny", &["the last tensor ends"], |d| edit_bytes(d, |b| b.push(0)));
    refused("llama3-tiny", &["header of 18446744073709551615 bytes"], |d| {
        edit_bytes(d, |b| b[..8].fill(255))
    });
    refused("llama3-tiny", &["header is no table"], |d| edit_bytes(d, |b| b[20] = 0));
    refused("llama3-tiny", &[q, "F64", "BF16"], |d| edit_header(d, |h| h[q]["dtype"] = json!("F64")));
    refused("llama3-tiny", &[q, "offsets"], |d| edit_header(d, |h| h[q]["data_offsets"] = json!([9, 5])));
    refused("llama3-tiny", &[q, "more than 2^64"], |d| {
        edit_header(d, |h| h[q]["shape"] = json!([u64::MAX, u64::MAX]));
    });
    refused("llama3-tiny", &["overlaps"], |d| {
        let k = "model.layers.0.self_attn.o_proj.weight";
        edit_header(d, |h| h[q]["data_offsets"] = h[k]["data_offsets"].clone());
    });
    refused("llama3-tiny", &["no dtype, shape and offsets"], |d| {
        edit_header(d, |h| h[q] = json!({"a": "b"}))
    });
}

#[test]
fn an_index_must_agree_with_its_shards() {
    let shard = |map: Value| {
        move |d: &Path| {
            std::fs::rename(d.join("model.safetensors"), d.join("a.safetensors")).unwrap();
            std::fs::write(d.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string())
                .unwrap();
        }
    };
    refused("llama3-tiny", &["weight_map is empty"], shard(json!({})));
    refused("llama3-tiny", &["../b.safetensors", "no name"], shard(json!({"x": "../b.safetensors"})));
    refused("llama3-tiny", &["b.safetensors"], shard(json!({"x": "b.safetensors"})));
    refused("llama3-tiny", &["`x` is not in a.safetensors"], shard(json!({"x": "a.safetensors"})));
    refused(
        "llama3-tiny",
        &["of a shard is not in weight_map"],
        shard(json!({"model.norm.weight": "a.safetensors"})),
    );
    refused("llama3-tiny", &["index.json", "line 1"], |d| {
        shard(json!({}))(d);
        std::fs::write(d.join("model.safetensors.index.json"), "[").unwrap();
    });
}

#[test]
fn damaged_tokenizer_files_are_named() {
    refused("llama3-tiny", &["tokenizer.json", "no tokenizer"], |d| {
        std::fs::write(d.join("tokenizer.json"), "{}").unwrap()
    });
    refused("llama3-tiny", &["tokenizer_config.json"], |d| {
        std::fs::write(d.join("tokenizer_config.json"), "[1").unwrap()
    });
    refused("llama3-tiny", &["token id 5000", "128 rows"], |d| {
        edit_json(&d.join("tokenizer.json"), |t| t["model"]["vocab"]["zzz"] = json!(5000));
    });
    refused("llama3-tiny", &["chat_template.jinja", "UTF-8"], |d| {
        std::fs::write(d.join("chat_template.jinja"), [255]).unwrap();
    });
}

fn gguf(bytes: Vec<u8>) -> String {
    match Checkpoint::from_gguf(Source::memory("m.gguf", bytes)) {
        Ok(_) => panic!("was accepted"),
        Err(Error::Io { .. }) => panic!("an I/O error for bytes in memory"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn damaged_gguf_files_say_what_and_where() {
    let w = small_model("llama3-tiny", "llama-bpe");
    let good = w.bytes();
    let patched = |at: usize, with: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        gguf(bytes)
    };
    let starts =
        |e: String, wanted: &str| assert!(e.contains(wanted) && e.contains("m.gguf"), "{wanted}: {e}");
    starts(patched(0, b"GGML"), "starts with \"GGML\", not with \"GGUF\"");
    starts(patched(4, &1u32.to_le_bytes()), "version 1");
    starts(patched(4, &3u32.to_be_bytes()), "big-endian");
    starts(patched(8, &u64::MAX.to_le_bytes()), "18446744073709551615 tensors");
    starts(patched(16, &(1u64 << 60).to_le_bytes()), "metadata keys");
    starts(patched(24, &(1u64 << 40).to_le_bytes()), "bytes of a key");
    // Cut off in the header, in the metadata, in the tensor table and in the data: never a panic.
    for len in (0..600).chain((600..good.len()).step_by(997)).chain([good.len() - 1]) {
        starts(gguf(good[..len].to_vec()), "");
    }
    starts(gguf(good[..good.len() - 1].to_vec()), "truncated");
    assert!(Checkpoint::from_gguf(Source::memory("m.gguf", good)).is_ok());
}

#[test]
fn foreign_gguf_models_are_named() {
    let w = small_model("llama3-tiny", "llama-bpe");
    let cases: Vec<(Writer, &[&str])> = vec![
        (w.clone().text("general.architecture", "gemma3"), &["gemma3", "llama, qwen2, qwen3"]),
        (w.clone().without("general.architecture"), &["general.architecture = none"]),
        (w.clone().u32("split.count", 2), &["split.count = 2", "--merge"]),
        (w.clone().u32("llama.expert_count", 8), &["expert_count = 8"]),
        (w.clone().u32("llama.attention.sliding_window", 4096), &["sliding_window = 4096"]),
        (w.clone().u32("llama.rope.dimension_count", 8), &["rope.dimension_count = 8", "16"]),
        (w.clone().text("llama.rope.scaling.type", "yarn"), &["yarn"]),
        (w.clone().text("llama.rope.scaling.type", "linear"), &["llama.rope.scaling.factor"]),
        (w.clone().without("llama.block_count"), &["`llama.block_count` is missing"]),
        (w.clone().text("llama.block_count", "two"), &["`llama.block_count` is Text"]),
        (w.clone().u32("llama.block_count", 3), &["blk.2.attn_q.weight", "missing"]),
        (w.clone().u32("llama.embedding_length", 0), &["hidden_size is 0"]),
        (w.clone().u32("general.alignment", 3), &["general.alignment"]),
        (w.clone().without("blk.1.ffn_up.weight"), &["`blk.1.ffn_up.weight`", "missing"]),
        (
            w.clone().f32_tensor("blk.0.attn_rot_embd", &[2], &[0.0; 2]),
            &["blk.0.attn_rot_embd", "unexpected"],
        ),
        (w.clone().f32_tensor("blk.0.ffn_norm.weight", &[32], &[0.0; 32]), &["ffn_norm", "[32]", "[64]"]),
        (
            w.clone().tensor("blk.0.attn_v.weight", &[32, 64], 13, vec![0; 1408]),
            &["blk.0.attn_v.weight", "Q5_K", "Q4_K"],
        ),
        (w.clone().tensor("blk.0.attn_v.weight", &[32, 64], 77, vec![0; 64]), &["ggml type 77"]),
        (
            w.clone().tensor("blk.0.attn_v.weight", &[32, 64], 12, vec![0; 1152]),
            &["Q4K comes in rows of 256"],
        ),
    ];
    for (w, wanted) in cases {
        let error = gguf(w.bytes());
        assert!(wanted.iter().all(|p| error.contains(p)) && error.contains("m.gguf"), "{wanted:?}: {error}");
    }
}

#[test]
fn gguf_linear_scaling_is_read() {
    let w = small_model("llama3-tiny", "llama-bpe").text("llama.rope.scaling.type", "linear");
    let bytes = w.f32("llama.rope.scaling.factor", 4.0).bytes();
    let config = Checkpoint::from_gguf(Source::memory("m", bytes)).unwrap().config;
    assert_eq!(config.rope_scaling, oasis_core::model::RopeScaling::Linear { factor: 4.0 });
}
