//! The head against an independent computation, and heads that do not fit.

use super::*;
use oasis_core::checkpoint::Checkpoint;
use oasis_core::draft::{BundledHead, DraftShape};
use oasis_core::registry::Params;
use oasis_kernels::Cpu;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

const FEATURES: usize = 3 * 256;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../datasets/bundled/nano")
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap()
}

struct Nano {
    backend: Cpu,
    model: Model<Cpu>,
}

impl Target<Cpu> for Nano {
    fn shallow_logits(&mut self, _: &mut Cpu, _: &[u32], _: usize) -> Result<Vec<f32>> {
        panic!("the head runs no layer of the target");
    }

    fn model(&self) -> &Model<Cpu> {
        &self.model
    }
}

fn nano() -> Nano {
    let mut backend = Cpu::new(1);
    let model = Checkpoint::open(&folder()).unwrap().build(&mut backend).unwrap();
    Nano { backend, model }
}

fn head(nano: &mut Nano) -> Arc<Head<Cpu>> {
    let head = Files::open(&folder()).unwrap().load(&mut nano.backend, &nano.model).unwrap();
    Arc::new(head)
}

fn propose(
    draft: &mut Eagle3<Cpu>,
    nano: &mut Nano,
    tokens: &[u32],
    hidden: &[f32],
    size: (usize, usize),
) -> Result<DraftTree> {
    let shape = DraftShape { depth: size.0, branches: size.1 };
    let mut backend = nano.backend.clone();
    draft.propose(&mut backend, nano, &DraftView { tokens, hidden, shape, future: &[] })
}

/// Element `i` of the hidden rows of the golden file; exact in bf16.
fn row_value(i: usize) -> f32 {
    (((i as u64 * 2_654_435_761) as u32 >> 24) as f32 - 128.0) / 16.0
}

fn golden() -> (Vec<u32>, Vec<f32>, Vec<Value>) {
    let json: Value =
        serde_json::from_str(include_str!("../../../tests/fixtures/eagle3_golden.json")).unwrap();
    let tokens: Vec<u32> = serde_json::from_value(json["tokens"].clone()).unwrap();
    let hidden = (0..(tokens.len() - 1) * FEATURES).map(row_value).collect();
    (tokens, hidden, json["positions"].as_array().unwrap().clone())
}

#[test]
fn logits_are_those_of_an_independent_computation() {
    let mut nano = nano();
    let head = head(&mut nano);
    let (tokens, hidden, positions) = golden();
    let mut backend = nano.backend.clone();
    let mut sequence = Sequence::new(&backend, &head).unwrap();
    let (mut errors, mut compared) = (Vec::new(), 0);
    for (at, steps) in positions.iter().enumerate() {
        let row = &hidden[at * FEATURES..][..FEATURES];
        sequence.absorb(&mut backend, &head, &nano.model, &tokens[..at + 2], row, 3).unwrap();
        for (ahead, step) in steps.as_array().unwrap().iter().enumerate() {
            if ahead > 0 {
                let token = steps[ahead - 1]["token"].as_u64().unwrap() as u32;
                sequence.advance(&mut backend, &head, &nano.model, token, at + ahead).unwrap();
            }
            let logits = sequence.logits(&mut backend, &head, &nano.model).unwrap();
            let scale = step["scale"].as_f64().unwrap();
            for (id, wanted) in step["ids"].as_array().unwrap().iter().zip(step["logits"].as_array().unwrap())
            {
                let got = f64::from(logits[id.as_u64().unwrap() as usize]);
                errors.push((got - wanted.as_f64().unwrap()).abs() / scale);
            }
            if step["margin"].as_f64().unwrap() > 0.1 * scale {
                assert_eq!(u64::from(top(logits, 1)[0]), step["token"].as_u64().unwrap(), "{at} {ahead}");
                compared += 1;
            }
        }
    }
    assert!(compared > 50, "{compared} of 72 steps have a clear winner");
    // Differences are those of bf16 activations; the unit is the spread of the logits.
    let worst = errors.iter().fold(0.0f64, |a, b| a.max(*b));
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    println!("mean difference {mean:.4}, largest {worst:.4}, of {} logits", errors.len());
    assert!(worst < 0.1 && mean < 0.015, "mean {mean}, largest {worst}");
}

#[test]
fn proposals_do_not_depend_on_how_the_text_came() {
    let mut nano = nano();
    let head = head(&mut nano);
    let (tokens, hidden, _) = golden();
    let mut steady = Eagle3::new(head.clone());
    for end in 2..=tokens.len() {
        let new = &hidden[(end - 2) * FEATURES..(end - 1) * FEATURES];
        let one = propose(&mut steady, &mut nano, &tokens[..end], new, (3, 2)).unwrap();
        let mut fresh = Eagle3::new(head.clone());
        let all =
            propose(&mut fresh, &mut nano, &tokens[..end], &hidden[..(end - 1) * FEATURES], (3, 2)).unwrap();
        // Bit for bit: below 64 rows a product does not depend on its company.
        assert_eq!(one, all, "{end} tokens");
        assert_eq!(one.parents, [0, 1, 2, 0]);
        assert_ne!(one.tokens[0], one.tokens[3]);
    }
}

#[test]
fn a_long_text_outgrows_the_first_buffers() {
    let mut nano = nano();
    let head = head(&mut nano);
    let tokens: Vec<u32> = (0..1200).map(|i| 4 + (i * 37) % 1400).collect();
    let hidden: Vec<f32> = (0..1199 * FEATURES).map(row_value).collect();
    let (mut fresh, mut steady) = (Eagle3::new(head.clone()), Eagle3::new(head));
    let mut done = 0;
    for end in [254, 255, 256, 257, 258, 800, 1197, 1200] {
        let rows = &hidden[done * FEATURES..(end - 1) * FEATURES];
        let last = propose(&mut steady, &mut nano, &tokens[..end], rows, (4, 1)).unwrap();
        done = end - 1;
        if end == tokens.len() {
            assert_eq!(last, propose(&mut fresh, &mut nano, &tokens, &hidden, (4, 1)).unwrap());
        }
    }
}

#[test]
fn positions_end_where_the_head_ends() {
    let mut nano = nano();
    let (tokens, hidden, _) = golden();
    let mut short = Files::open(&folder()).unwrap().load(&mut nano.backend, &nano.model).unwrap();
    short.set_max_positions(10);
    let mut draft = Eagle3::new(Arc::new(short));
    let shape = (3, 1);
    let tree = propose(&mut draft, &mut nano, &tokens[..10], &hidden[..9 * FEATURES], shape).unwrap();
    assert_eq!(tree.tokens.len(), 2, "position 9 is the last");
    let error = propose(&mut draft, &mut nano, &tokens[..12], &hidden[9 * FEATURES..11 * FEATURES], shape);
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("11 tokens") && error.contains("10") && error.contains("eagle3.max_positions"),
        "{error}"
    );
}

#[test]
fn hidden_rows_that_do_not_match_the_text_are_an_error() {
    let mut nano = nano();
    let head = head(&mut nano);
    let (tokens, hidden, _) = golden();
    for (end, rows) in [(10, 8), (10, 10), (1, 0), (0, 0)] {
        let mut draft = Eagle3::new(head.clone());
        let error =
            propose(&mut draft, &mut nano, &tokens[..end], &hidden[..rows * FEATURES], (1, 1)).unwrap_err();
        assert!(matches!(error, Error::Invariant(_)), "{error}");
    }
}

type Rows = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// The bundled head after a change, loaded.
fn changed(edit: impl FnOnce(&mut Value, &mut Rows)) -> Result<Head<Cpu>> {
    let mut config: Value = serde_json::from_slice(&file("eagle3_config.json")).unwrap();
    let bytes = file("eagle3.safetensors");
    let parsed = SafeTensors::deserialize(&bytes).unwrap();
    let mut rows: Rows = parsed
        .iter()
        .map(|(n, v)| (n.to_owned(), (v.dtype(), v.shape().to_vec(), v.data().to_vec())))
        .collect();
    edit(&mut config, &mut rows);
    let views = rows.iter().map(|(n, (d, s, b))| (n, TensorView::new(*d, s.clone(), b).unwrap()));
    let bytes = safetensors::serialize(views, None).unwrap();
    let mut nano = nano();
    let config = config.to_string();
    let (config, weights) =
        ((Path::new("c.json"), config.as_bytes()), (Path::new("w.safetensors"), bytes.as_slice()));
    Head::load(config, weights, &mut nano.backend, &nano.model)
}

#[track_caller]
fn refused(words: &[&str], edit: impl FnOnce(&mut Value, &mut Rows)) {
    let error = changed(edit).err().expect("a head that does not fit").to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

#[test]
fn heads_that_do_not_fit_are_refused_by_name() {
    assert!(changed(|_, _| {}).is_ok());
    let taps = |list: Value| {
        move |c: &mut Value, _: &mut Rows| c["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = list
    };
    refused(&["w.safetensors", "fc.weight", "768", "1 layers", "3.0"], taps(serde_json::json!([4])));
    refused(&["c.json", "layer 6", "0 to 5"], taps(serde_json::json!([0, 2, 6])));
    refused(&["c.json", "eagle_aux_hidden_state_layer_ids"], taps(Value::Null));
    refused(&["c.json", "width 128", "256"], |c, _| c["target_hidden_size"] = 128.into());
    refused(&["c.json", "vocab_size is 1473", "1472"], |c, _| c["vocab_size"] = 1473.into());
    refused(&["c.json", "draft_vocab_size is 2000"], |c, _| c["draft_vocab_size"] = 2000.into());
    refused(&["c.json", "2 layers"], |c, _| c["num_hidden_layers"] = 2.into());
    refused(&["w.safetensors", "norm.weight", "missing"], |_, t| drop(t.remove("norm.weight")));
    refused(&["w.safetensors", "unexpected", "extra"], |_, t| {
        t.insert("extra".into(), (Dtype::F32, vec![1], vec![0; 4]));
    });
    refused(&["q_proj", "[512, 512]", "[256, 512]"], |c, _| c["num_attention_heads"] = 4.into());
    refused(&["norm.weight", "I64"], |_, t| {
        t.insert("norm.weight".into(), (Dtype::I64, vec![256], vec![0; 2048]));
    });
    refused(&["lm_head.weight", "1000 of 1472"], |c, t| {
        c["draft_vocab_size"] = 1000.into();
        t.insert("d2t".into(), (Dtype::I64, vec![1000], vec![0; 8000]));
    });
    refused(&["d2t", "draft id 3", "1472"], |_, t| {
        t.get_mut("d2t").unwrap().2[24..32].copy_from_slice(&1469i64.to_le_bytes());
    });
    refused(&["d2t", "draft id 7", "t2d"], |_, t| t.get_mut("t2d").unwrap().2[7] = 0);
    refused(&["t2d", "F32"], |_, t| {
        t.insert("t2d".into(), (Dtype::F32, vec![1472], vec![0; 5888]));
    });
}

#[test]
fn damaged_files_are_errors() {
    let mut nano = nano();
    let (config, weights) = (file("eagle3_config.json"), file("eagle3.safetensors"));
    let mut load = |config: &[u8], weights: &[u8]| {
        Eagle3::from_bytes(config, weights, &mut nano.backend, &nano.model).err()
    };
    assert!(load(&config, &weights).is_none());
    for cut in [0, 7, 8, 100, 2000, weights.len() - 1] {
        let error = load(&config, &weights[..cut]).expect("cut off").to_string();
        assert!(error.contains("eagle3.safetensors"), "{error}");
    }
    for bad in [&b""[..], b"{", b"[]", b"{}", b"{\"eagle_config\": 3}"] {
        let error = load(bad, &weights).expect("no config").to_string();
        assert!(error.contains("eagle3_config.json"), "{error}");
    }
}

/// A head with a vocabulary of its own: half the draft ids, moved by one, with an own output matrix.
#[test]
fn a_reduced_vocabulary_is_mapped_to_the_targets() {
    let mut nano = nano();
    let bytes = file("model.safetensors");
    let parsed = SafeTensors::deserialize(&bytes).unwrap();
    let embedding = parsed.tensor("model.embed_tokens.weight").unwrap();
    let reduced = changed(|c, t| {
        c["draft_vocab_size"] = 736.into();
        let rows = embedding.data().chunks_exact(2 * 256).skip(1).step_by(2).flatten().copied().collect();
        t.insert("lm_head.weight".into(), (Dtype::BF16, vec![736, 256], rows));
        let offsets = (0..736i64).flat_map(|i| (i + 1).to_le_bytes()).collect();
        t.insert("d2t".into(), (Dtype::I64, vec![736], offsets));
        t.insert("t2d".into(), (Dtype::BOOL, vec![1472], (0..1472).map(|i| i as u8 % 2).collect()));
    });
    let (mut small, mut full) = (Eagle3::new(Arc::new(reduced.unwrap())), Eagle3::new(head(&mut nano)));
    let (tokens, hidden, _) = golden();
    for end in 2..=tokens.len() {
        let new = &hidden[(end - 2) * FEATURES..(end - 1) * FEATURES];
        let ours = propose(&mut small, &mut nano, &tokens[..end], new, (1, 1)).unwrap().tokens;
        let all = propose(&mut full, &mut nano, &tokens[..end], new, (1, 1472)).unwrap().tokens;
        assert_eq!(Some(&ours[0]), all.iter().find(|id| *id % 2 == 1), "the best of the ids that it has");
    }
}

fn setup<'a>(nano: &'a mut Nano, params: &'a Params, bundled: Option<BundledHead>) -> DraftSetup<'a, Cpu> {
    DraftSetup { params, backend: &mut nano.backend, model: &nano.model, bundled_eagle3: bundled }
}

fn params(toml: &str) -> Params {
    Params { table: toml.parse().unwrap(), seed: 1 }
}

#[test]
fn the_table_row_loads_from_the_program_or_from_a_path() {
    let mut nano = nano();
    let build = entry::<Cpu>().build;
    let bundled =
        BundledHead { config: file("eagle3_config.json").leak(), weights: file("eagle3.safetensors").leak() };
    let default = params("");
    let factory = build(setup(&mut nano, &default, Some(bundled))).unwrap();
    assert_eq!(factory(1).unwrap().hidden_layers(), [0, 2, 4]);
    let error = build(setup(&mut nano, &default, None)).err().unwrap().to_string();
    assert!(error.contains("eagle3.path") && error.contains("bundled"), "{error}");
    for path in [folder(), folder().join("eagle3.safetensors")] {
        let there = params(&format!("path = {:?}\nmax_positions = 64", path));
        assert!(build(setup(&mut nano, &there, None)).is_ok());
    }
    for path in [folder().join("fixtures"), folder().join("nosuch")] {
        let error =
            build(setup(&mut nano, &params(&format!("path = {path:?}")), None)).err().unwrap().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
    }
}
