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
    static BYTES: LazyLock<Tokenizer> = LazyLock::new(|| bytes(false));
    &BYTES
}

/// A tokenizer that writes a blank in front of every text, so that pieces do not add up to the whole.
pub fn prefixing_tokenizer() -> &'static Tokenizer {
    static PREFIXING: LazyLock<Tokenizer> = LazyLock::new(|| bytes(true));
    &PREFIXING
}

fn bytes(prefix: bool) -> Tokenizer {
    let mut vocab: Vec<String> = (b'!'..=b'~').map(|b| char::from(b).to_string()).collect();
    vocab.extend(["Ġ", "Ċ", "Ġt", "Ġth", "Ġthe"].map(str::to_owned));
    let vocab: serde_json::Map<String, serde_json::Value> =
        vocab.into_iter().enumerate().map(|(id, token)| (token, id.into())).collect();
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": true},
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

/// A byte-level tokenizer of 2,000 tokens with Llama 3's splitting rule, begin-of-text token and chat template.
pub fn novel_tokenizer() -> &'static Tokenizer {
    static NOVEL: LazyLock<Tokenizer> = LazyLock::new(|| {
        let json = include_bytes!("../tests/fixtures/novel-bpe/tokenizer.json");
        let config = include_bytes!("../tests/fixtures/novel-bpe/tokenizer_config.json");
        Tokenizer::from_json(json, Some(config)).unwrap()
    });
    &NOVEL
}

/// Paragraphs of the bundled novel as documents with a question each, in the form of SQuAD 2.0.
pub fn squad() -> String {
    let novel = include_str!("../bundled/text/sense-and-sensibility.txt");
    let paragraphs: Vec<serde_json::Value> = novel
        .split("\n\n")
        .map(|p| p.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|p| (100..900).contains(&p.len()))
        .enumerate()
        .map(|(i, p)| {
            let answer: String = p.split(' ').take(3).collect::<Vec<_>>().join(" ");
            let question = format!("How does paragraph {i} begin?");
            serde_json::json!({"context": p, "qas": [
                {"question": "What is not there?", "is_impossible": true, "answers": []},
                {"question": question, "is_impossible": false, "answers": [{"text": answer}]},
            ]})
        })
        .collect();
    let articles: Vec<_> =
        paragraphs.chunks(20).map(|p| serde_json::json!({"title": "t", "paragraphs": p})).collect();
    serde_json::json!({"version": "v2.0", "data": articles}).to_string()
}

/// The same in the form of HotpotQA, ten documents a question.
pub fn hotpot() -> String {
    let squad: serde_json::Value = serde_json::from_str(&squad()).unwrap();
    let articles = squad["data"].as_array().unwrap().iter().map(|a| a["paragraphs"].as_array().unwrap());
    let records: Vec<serde_json::Value> = articles
        .flat_map(|paragraphs| paragraphs.chunks(10))
        .enumerate()
        .map(|(i, paragraphs)| {
            let context: Vec<_> = paragraphs
                .iter()
                .map(|p| serde_json::json!([format!("Title {i}"), [p["context"]]]))
                .collect();
            let qa = &paragraphs[0]["qas"][1];
            let answer = if i % 4 == 3 { "yes".into() } else { qa["answers"][0]["text"].clone() };
            serde_json::json!({"_id": i.to_string(), "question": qa["question"], "answer": answer, "context": context})
        })
        .collect();
    serde_json::Value::from(records).to_string()
}
