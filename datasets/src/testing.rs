//! What the tests share.

use crate::{Sample, nano};
use oasis_core::{registry::Params, text::Tokenizer};
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

/// A tokenizer from the bytes of a `tokenizer.json`.
pub fn tokenizer(json: &[u8]) -> Tokenizer {
    Tokenizer::from_json(json, None).unwrap()
}

/// The bundled model's tokenizer, read once.
pub fn nano_tokenizer() -> &'static Tokenizer {
    static NANO: LazyLock<Tokenizer> =
        LazyLock::new(|| Tokenizer::from_json(nano().tokenizer, Some(nano().tokenizer_config)).unwrap());
    &NANO
}

/// A byte-level tokenizer with three merges and no begin-of-text token: about five tokens a word.
pub fn byte_tokenizer() -> &'static Tokenizer {
    static BYTES: LazyLock<Tokenizer> = LazyLock::new(bytes);
    &BYTES
}

fn bytes() -> Tokenizer {
    let mut vocab: Vec<String> = (b'!'..=b'~').map(|b| char::from(b).to_string()).collect();
    vocab.extend(["Ġ", "Ċ", "Ġt", "Ġth", "Ġthe"].map(str::to_owned));
    let vocab: serde_json::Map<String, serde_json::Value> =
        vocab.into_iter().enumerate().map(|(id, token)| (token, id.into())).collect();
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["Ġ t", "Ġt h", "Ġth e"]},
    });
    tokenizer(json.to_string().as_bytes())
}

/// The bundled records of the model's authors.
pub fn fixtures() -> Vec<serde_json::Value> {
    [
        include_str!("../bundled/nano/fixtures/512.jsonl"),
        include_str!("../bundled/nano/fixtures/1024.jsonl"),
        include_str!("../bundled/nano/fixtures/2048.jsonl"),
        include_str!("../bundled/nano/fixtures/4096.jsonl"),
    ]
    .iter()
    .flat_map(|text| text.lines())
    .map(|line| serde_json::from_str(line).unwrap())
    .collect()
}

/// Parameters as TOML.
pub fn params(toml: &str) -> Params {
    Params { table: toml.parse().unwrap(), seed: 0 }
}

/// One hash over what decides an outcome.
pub fn golden(samples: &[Sample]) -> String {
    let mut hash = Sha256::new();
    for s in samples {
        let parts = (&s.id, s.seed, &s.prompt, s.question_at, &s.answer, s.max_new_tokens);
        hash.update(serde_json::to_string(&parts).unwrap());
    }
    crate::task::hex(&hash.finalize())
}
