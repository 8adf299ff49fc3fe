//! Checkpoints that are as they should be: the numbers that arrive on a backend.

mod support;

use half::bf16;
use oasis_core::checkpoint::Checkpoint;
use oasis_core::checkpoint::dtype::Dtype;
use oasis_core::checkpoint::source::Source;
use oasis_core::model::{Family, ModelConfig, RopeScaling};
use safetensors::SafeTensors;
use sha2::{Digest, Sha256};
use support::gguf_writer::small_model;
use support::{Ram, SMALL, bits, copy_of, fixture, smollm2};

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(&fixture(name)).unwrap()
}

#[test]
fn a_folder_arrives_fused_and_bit_for_bit() {
    for name in SMALL {
        let checkpoint = open(name);
        let model = checkpoint.build(&mut Ram).unwrap();
        let file = std::fs::read(fixture(name).join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&file).unwrap();
        let raw = |name: &str| -> Vec<bf16> {
            let data = file.tensor(name).unwrap_or_else(|_| panic!("{name}")).data();
            data.chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]])).collect()
        };
        let floats = |name: &str| raw(name).iter().map(|x| x.to_f32()).collect::<Vec<f32>>();
        for (l, layer) in model.layers.iter().enumerate() {
            let at = |rest: &str| format!("model.layers.{l}.{rest}");
            let parts = |stem: &str, names: &[&str], kind: &str| -> Vec<String> {
                names.iter().map(|n| at(&format!("{stem}.{n}_proj.{kind}"))).collect()
            };
            let qkv: Vec<bf16> =
                parts("self_attn", &["q", "k", "v"], "weight").iter().flat_map(|n| raw(n)).collect();
            assert_eq!(layer.qkv.weight, qkv);
            assert_eq!(layer.qkv.rows_out * layer.qkv.cols_in, qkv.len());
            let gate_up: Vec<bf16> =
                parts("mlp", &["gate", "up"], "weight").iter().flat_map(|n| raw(n)).collect();
            assert_eq!(layer.gate_up.weight, gate_up);
            assert_eq!(layer.down.weight, raw(&at("mlp.down_proj.weight")));
            assert_eq!(layer.out.weight, raw(&at("self_attn.o_proj.weight")));
            assert_eq!(layer.attn_norm, floats(&at("input_layernorm.weight")));
            assert_eq!(layer.mlp_norm, floats(&at("post_attention_layernorm.weight")));
            let bias = (name == "qwen2-tiny").then(|| {
                parts("self_attn", &["q", "k", "v"], "bias").iter().flat_map(|n| floats(n)).collect()
            });
            assert_eq!(layer.qkv.bias, bias);
            let norm =
                |n: &str| (name == "qwen3-tiny").then(|| floats(&at(&format!("self_attn.{n}_norm.weight"))));
            assert_eq!((&layer.q_norm, &layer.k_norm), (&norm("q"), &norm("k")));
        }
        assert_eq!(model.embedding.weight, raw("model.embed_tokens.weight"));
        assert_eq!(model.final_norm, floats("model.norm.weight"));
        let head = model.head.as_ref().map(|h| &h.weight);
        assert_eq!(head, (name != "qwen2-tiny").then(|| raw("lm_head.weight")).as_ref());
        assert_eq!(model.inv_freq, checkpoint.config.inv_freq());
    }
}

#[test]
fn configurations_are_read_with_all_that_changes_the_numbers() {
    let llama = open("llama3-tiny").config;
    assert_eq!(
        (llama.family, llama.qkv_bias, llama.qk_norm, llama.tied_embeddings),
        (Family::Llama, false, false, false)
    );
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_positions: 64,
    };
    assert_eq!(llama.rope_scaling, scaling);
    assert_eq!(llama.bos, Some(1), "the post-processor puts <bos> in front");
    let qwen2 = open("qwen2-tiny").config;
    assert_eq!((qwen2.family, qwen2.qkv_bias, qwen2.tied_embeddings), (Family::Qwen2, true, true));
    assert_eq!(qwen2.bos, None, "add_bos_token is false");
    assert_eq!(qwen2.eos, [3, 0], "generation_config.json has a list");
    let qwen3 = open("qwen3-tiny").config;
    assert_eq!((qwen3.qk_norm, qwen3.geometry.head_dim, qwen3.geometry.q_dim()), (true, 32, 128));
    for name in SMALL {
        let alone = Checkpoint::config_only(&fixture(name)).unwrap();
        let full = open(name).config;
        assert_eq!(
            ModelConfig { bos: None, eos: vec![], ..alone },
            ModelConfig { bos: None, eos: vec![], ..full }
        );
    }
}

#[test]
fn a_digest_is_that_of_the_bytes() {
    let folder = fixture("qwen2-tiny");
    let mut hash = Sha256::new();
    for file in ["config.json", "model.safetensors"] {
        hash.update(std::fs::read(folder.join(file)).unwrap());
    }
    let hex: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(open("qwen2-tiny").digest, hex);
}

#[test]
fn memory_shards_and_hub_names_give_the_same_model() {
    let folder = fixture("qwen3-tiny");
    let read = |f: &str| std::fs::read(folder.join(f)).unwrap();
    let one = open("qwen3-tiny").build(&mut Ram).unwrap();
    let parts = Checkpoint::from_parts(
        "tiny",
        &read("config.json"),
        read("model.safetensors"),
        &read("tokenizer.json"),
        Some(&read("generation_config.json")),
    );
    assert_eq!(bits(&parts.unwrap().build(&mut Ram).unwrap()), bits(&one));

    let copy = copy_of("qwen3-tiny");
    let file = read("model.safetensors");
    let tensors = SafeTensors::deserialize(&file).unwrap().tensors();
    let mut map = serde_json::Map::new();
    for (shard, half) in [&tensors[..9], &tensors[9..]].into_iter().enumerate() {
        let name = format!("model-{shard}.safetensors");
        let bytes = safetensors::serialize(half.iter().map(|(n, v)| (n, v)), None).unwrap();
        std::fs::write(copy.path().join(&name), bytes).unwrap();
        map.extend(half.iter().map(|(n, _)| (n.clone(), name.clone().into())));
    }
    std::fs::remove_file(copy.path().join("model.safetensors")).unwrap();
    let index = serde_json::json!({ "weight_map": map }).to_string();
    std::fs::write(copy.path().join("model.safetensors.index.json"), index).unwrap();
    let sharded = Checkpoint::open(copy.path()).unwrap();
    assert_eq!(bits(&sharded.build(&mut Ram).unwrap()), bits(&one));
}

#[test]
fn a_gguf_file_gives_the_folders_numbers() {
    for (name, pre) in [("llama3-tiny", "llama-bpe"), ("qwen2-tiny", "qwen2"), ("qwen3-tiny", "qwen2")] {
        let folder = open(name);
        let gguf =
            Checkpoint::from_gguf(Source::memory("tiny.gguf", small_model(name, pre).bytes())).unwrap();
        let expected = ModelConfig {
            rope_scaling: RopeScaling::None,
            bos: gguf.config.bos,
            eos: gguf.config.eos.clone(),
            ..folder.config.clone()
        };
        assert_eq!(gguf.config, expected, "{name}");
        let [mut a, mut b] = [gguf, folder].map(|c| c.build(&mut Ram).unwrap());
        // RoPE's frequencies differ where the folder scales them; they are compared above, by their settings.
        a.inv_freq.clear();
        b.inv_freq.clear();
        assert_eq!(bits(&a), bits(&b), "{name}");
    }
}

#[test]
fn llama3_scaling_is_found_again_in_a_gguf_file() {
    let scaling = RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_positions: 8192,
    };
    // A base that puts frequencies into all three bands although the heads are small.
    let w = small_model("llama3-tiny", "llama-bpe").f32("llama.rope.freq_base", 500_000.0);
    let plain = Checkpoint::from_gguf(Source::memory("m", w.bytes())).unwrap().config;
    let scaled = ModelConfig { rope_scaling: scaling.clone(), ..plain.clone() };
    let divisors: Vec<f32> = plain.inv_freq().iter().zip(scaled.inv_freq()).map(|(p, s)| p / s).collect();
    assert!(divisors.contains(&1.0) && divisors.contains(&32.0));
    let bytes = w.clone().f32_tensor("rope_freqs.weight", &[divisors.len()], &divisors).bytes();
    let found = Checkpoint::from_gguf(Source::memory("m", bytes)).unwrap().config;
    assert_eq!(found.rope_scaling, scaling);
    let odd: Vec<f32> = divisors.iter().enumerate().map(|(i, d)| if i == 2 { 3.0 } else { *d }).collect();
    let bytes = w.f32_tensor("rope_freqs.weight", &[odd.len()], &odd).bytes();
    let error = Checkpoint::from_gguf(Source::memory("m", bytes)).unwrap_err().to_string();
    assert!(error.contains("rope_freqs.weight"), "{error}");
}

#[test]
fn every_format_decodes_as_ggmls_own_package_does() {
    let file = std::fs::read(fixture("quants").join("quants.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    let formats = [
        ("Q8_0", Dtype::Q8_0),
        ("Q4_0", Dtype::Q4_0),
        ("Q4_1", Dtype::Q4_1),
        ("Q4_K", Dtype::Q4K),
        ("Q6_K", Dtype::Q6K),
    ];
    for (name, dtype) in formats {
        let bytes = file.tensor(&format!("{name}.bytes")).unwrap().data().to_vec();
        let values = file.tensor(&format!("{name}.values")).unwrap().data().to_vec();
        let values: Vec<f32> = values.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(dtype.bytes(values.len() as u64), Some(bytes.len() as u64));
        let mut out = vec![f32::NAN; values.len()];
        dtype.decode_f32(&bytes, &mut out);
        for (i, (a, b)) in out.iter().zip(&values).enumerate() {
            assert!((a - b).abs() <= 1e-6 * b.abs().max(1e-3), "{name} [{i}]: {a}, not {b}");
        }
        let mut rounded = vec![bf16::NAN; values.len()];
        dtype.decode_bf16(&bytes, &mut rounded);
        assert!(rounded.iter().zip(&out).all(|(r, x)| *r == bf16::from_f32(*x)), "{name}");
    }
    let plain = [1.0f32, -2.5, 0.1, 65504.0, 3.0e-8];
    let mut out = [0.0; 5];
    let f16: Vec<u8> = plain.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect();
    Dtype::F16.decode_f32(&f16, &mut out);
    assert!(out.iter().zip(plain).all(|(a, b)| *a == half::f16::from_f32(b).to_f32()));
    let f32: Vec<u8> = plain.iter().flat_map(|x| x.to_le_bytes()).collect();
    Dtype::F32.decode_f32(&f32, &mut out);
    assert_eq!(out, plain);
}

#[test]
fn smollm2_has_the_values_that_other_readers_see() {
    let Some(path) = smollm2() else { return };
    let start = std::time::Instant::now();
    let checkpoint = Checkpoint::open(&path).unwrap();
    println!("SmolLM2 opened in {:.2} s", start.elapsed().as_secs_f64());
    assert_eq!(checkpoint.digest, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53");
    let g = &checkpoint.config.geometry;
    assert_eq!((g.layers, g.hidden, g.heads, g.kv_heads, g.head_dim, g.vocab), (30, 576, 9, 3, 64, 49_152));
    assert!(checkpoint.config.tied_embeddings && checkpoint.config.rope_theta == 100_000.0);
    let q = checkpoint.tensors().f32("blk.0.attn_q.weight").unwrap();
    let sum: f64 = q.iter().map(|x| f64::from(*x)).sum();
    assert!((sum - 59.223_221).abs() < 1e-5, "{sum}");
    let start = std::time::Instant::now();
    let model = checkpoint.build(&mut Ram).unwrap();
    println!("SmolLM2 from GGUF to bf16 in {:.2} s", start.elapsed().as_secs_f64());
    // Rows of a head: the file has (i, i + 32) as neighbours, the model wants them 32 apart.
    let (d, cols) = (64, 576);
    for head in [0, 8] {
        for i in [0, 1, 31] {
            let file_row = |r: usize| &q[(head * d + r) * cols..][..cols];
            let row = |r: usize| &model.layers[0].qkv.weight[(head * d + r) * cols..][..cols];
            assert!(row(i).iter().zip(file_row(2 * i)).all(|(a, b)| *a == bf16::from_f32(*b)));
            assert!(row(i + 32).iter().zip(file_row(2 * i + 1)).all(|(a, b)| *a == bf16::from_f32(*b)));
        }
    }
}

#[test]
fn the_bundled_model_and_its_prompt_are_read_as_its_authors_read_them() {
    let folder = fixture("../../../datasets/bundled/nano");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let t = &checkpoint.tokenizer;
    let ids = t.encode("The secret code for Amber fox is 482.", true).unwrap();
    assert_eq!(t.decode(&ids).unwrap(), "the secret code for amber fox is 4 8 2 .");
    assert_eq!((ids[0], checkpoint.config.bos, &checkpoint.config.eos[..]), (1, Some(1), &[2][..]));
    let record: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("reference.json")).unwrap()).unwrap();
    let file = std::fs::read(fixture("nano").join("nano_rounded.safetensors")).unwrap();
    let wanted = SafeTensors::deserialize(&file).unwrap().tensor("input_ids").unwrap().data().to_vec();
    let wanted: Vec<u32> = wanted.chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(t.encode(record["prompt_text"].as_str().unwrap(), true).unwrap(), wanted);
    let read = |f: &str| std::fs::read(folder.join(f)).unwrap();
    let parts = Checkpoint::from_parts(
        "nano",
        &read("config.json"),
        read("model.safetensors"),
        &read("tokenizer.json"),
        Some(&read("generation_config.json")),
    )
    .unwrap();
    assert_eq!((parts.config, parts.digest), (checkpoint.config, checkpoint.digest));
    assert_eq!(parts.tokenizer.encode("fox", true).unwrap(), t.encode("fox", true).unwrap());
}
