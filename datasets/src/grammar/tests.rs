//! Documents against the grammar's rules, and against documents that the model's authors published.

mod reader;

use super::{
    facts::{SPECS, Spec},
    filler::{FORMS, TOPICS, candidate},
    lexicon::Class,
};
use crate::{
    Sample, find_task,
    testing::{fixtures, golden, nano_tokenizer, params},
};
use oasis_core::text::Tokenizer;
use proptest::prelude::*;
use reader::{Body, Reader};
use std::collections::HashSet;

/// Facts, or owners with all their facts.
fn units(spec: &Spec, body: &Body) -> usize {
    match spec.name {
        "niah_multivalue" => body.facts.iter().map(|f| f[0]).collect::<HashSet<_>>().len(),
        _ => body.facts.len(),
    }
}

fn spec(name: &str) -> &'static Spec {
    SPECS.iter().find(|spec| spec.name == name).unwrap()
}

fn make(name: &str, toml: &str, length: usize, n: usize, seed: u64) -> oasis_core::Result<Vec<Sample>> {
    find_task(name, &params(toml))?.samples(nano_tokenizer(), length, n, seed)
}

/// A published document: its task, its length, its body and its question as tokens, and its answer as text.
struct Published {
    task: String,
    length: usize,
    body: Vec<u32>,
    question: Vec<u32>,
    answer: String,
}

fn published(tokenizer: &Tokenizer) -> Vec<Published> {
    let question = tokenizer.token_id("question").unwrap();
    let read = |record: serde_json::Value| {
        let text = |key: &str| record[key].as_str().unwrap().to_owned();
        let tokens = tokenizer.encode(&text("prompt_text"), true).unwrap();
        let at = tokens.iter().rposition(|&id| id == question).unwrap();
        Published {
            task: text("task"),
            length: record["length"].as_u64().unwrap() as usize,
            body: tokens[..at].to_vec(),
            question: tokens[at..].to_vec(),
            answer: text("answer_text"),
        }
    };
    fixtures().into_iter().map(read).collect()
}

#[test]
fn published_documents_follow_the_grammar_as_it_is_written_here() {
    let tokenizer = nano_tokenizer();
    let reader = Reader::new(tokenizer);
    let documents = published(tokenizer);
    assert_eq!(documents.len(), 2 * 9 * 4);
    for document in documents {
        let spec = spec(&document.task);
        let body = reader.body(spec, &document.body).unwrap_or_else(|| panic!("{}", document.task));
        let ask = reader.lexicon.pattern(spec.ask).unwrap();
        assert_eq!(ask.0.len(), document.question.len());
        let asked = reader.begins(&ask, &document.question).unwrap();
        let answer = reader.solve(spec, &body, &asked);
        assert_eq!(tokenizer.decode(&answer[..answer.len() - 1]).unwrap(), document.answer);
        // Published bodies have several questions each and are longer by them, so they hold a few facts more.
        let units = units(spec, &body);
        let (least, most) = ((spec.count)(document.length), (spec.count)(document.length + 12 * 24));
        assert!((least..=most).contains(&units), "{} {}: {units}", spec.name, document.length);
    }
}

#[test]
fn questions_have_the_form_of_published_ones() {
    let tokenizer = nano_tokenizer();
    let reader = Reader::new(tokenizer);
    for document in published(tokenizer) {
        let sample = &make(&document.task, "", document.length, 1, 3).unwrap()[0];
        let question = &sample.prompt[sample.question_at..];
        assert_eq!(reader.outline(question), reader.outline(&document.question), "{}", document.task);
    }
}

/// Shares of what the filler rules determine.
#[derive(Debug, Default)]
struct Shares {
    sentences: f64,
    forms: [f64; 31],
    later: f64,
    ranks: [f64; 4],
}

impl Shares {
    fn add(&mut self, reader: &Reader<'_>, body: &Body) {
        for (form, words) in &body.filler {
            self.sentences += 1.0;
            self.forms[*form] += 1.0;
            for pair in words.windows(2) {
                let (class, word) = pair[1];
                let number = reader.lexicon.class(class).position(word).unwrap();
                let rank = (0..4).find(|&j| candidate(&reader.lexicon, class, pair[0].1, j) == number);
                self.later += 1.0;
                if let Some(rank) = rank {
                    self.ranks[rank as usize] += 1.0;
                }
            }
        }
    }

    fn rank(&self, rank: usize) -> f64 {
        self.ranks[rank] / self.later
    }
}

/// Topics that explain the first content word of every sentence.
fn topics(reader: &Reader<'_>, body: &Body) -> usize {
    let explains = |topic: u32, class: Class, word: u32| {
        let range = reader.lexicon.class(class);
        let offset = (range.position(word).unwrap() + range.len - topic * range.len / TOPICS) % range.len;
        f64::from(offset) < f64::from(range.len) / 4.0
    };
    let all = |topic: &u32| body.filler.iter().all(|(_, words)| explains(*topic, words[0].0, words[0].1));
    (0..TOPICS).filter(all).count()
}

#[test]
fn filler_has_the_statistics_of_published_filler() {
    let tokenizer = nano_tokenizer();
    let reader = Reader::new(tokenizer);
    let (mut theirs, mut ours) = (Shares::default(), Shares::default());
    for document in published(tokenizer) {
        let body = reader.body(spec(&document.task), &document.body).unwrap();
        assert!(body.filler.len() < 10 || topics(&reader, &body) >= 1, "{}", document.task);
        theirs.add(&reader, &body);
    }
    for spec in &SPECS {
        for sample in make(spec.name, "", 2048, 16, 9).unwrap() {
            let body = reader.body(spec, &sample.prompt[..sample.question_at]).unwrap();
            assert!(topics(&reader, &body) >= 1, "{}", sample.id);
            ours.add(&reader, &body);
        }
    }
    assert!(theirs.sentences > 8_000.0 && ours.sentences > 8_000.0);
    // Beside the rule's shares, 10 % of the words are free and hit each candidate now and then (1/65 at most).
    for (rank, share) in [0.405, 0.225, 0.18, 0.09].into_iter().enumerate() {
        for shares in [&theirs, &ours] {
            let found = shares.rank(rank);
            assert!((share - 0.008..share + 0.011).contains(&found), "rank {rank}: {found} {share}");
        }
        assert!((theirs.rank(rank) - ours.rank(rank)).abs() < 0.012, "rank {rank}");
    }
    for form in 0..FORMS.len() {
        for shares in [&theirs, &ours] {
            let share = 31.0 * shares.forms[form] / shares.sentences;
            assert!((0.8..1.2).contains(&share), "form {form}: {share}");
        }
    }
}

/// Every rule that one sample must keep.
fn check(reader: &Reader<'_>, spec: &Spec, sample: &Sample, length: usize, exact: bool) {
    let total = sample.prompt.len() + sample.answer.len();
    assert!(if exact { total == length } else { (length - 4..=length).contains(&total) }, "{total} {length}");
    assert_eq!(sample.max_new_tokens, sample.answer.len());
    assert!(sample.prompt.iter().chain(&sample.answer).all(|&id| id != 3 && id < 1417), "unknown word");
    let body = reader.body(spec, &sample.prompt[..sample.question_at]).expect("the body breaks the grammar");
    let ask = reader.lexicon.pattern(spec.ask).unwrap();
    let asked = reader.begins(&ask, &sample.prompt[sample.question_at..]).expect("question");
    assert_eq!(ask.0.len(), sample.prompt.len() - sample.question_at);
    assert_eq!(reader.solve(spec, &body, &asked), sample.answer, "{}", sample.id);
    let keys: Vec<Vec<u32>> = match spec.name {
        "cwe" => Vec::new(),
        "niah_multivalue" => body.facts.clone(),
        "niah_multiquery" => body.facts.iter().map(|f| f[..1].to_vec()).collect(),
        "vt" | "vt_trace" => body.facts.iter().chain(&body.links).map(|f| f[..1].to_vec()).collect(),
        _ => body.facts.iter().map(|f| f[..2].to_vec()).collect(),
    };
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len(), "a key occurs twice");
    assert_eq!(units(spec, &body), (spec.count)(length));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn samples_keep_every_rule(task in 0..SPECS.len(), more in 0usize..2500, questions in 1usize..6, seed: u64) {
        let tokenizer = nano_tokenizer();
        let reader = Reader::new(tokenizer);
        let spec = &SPECS[task];
        let length = spec.smallest() + more;
        let questions = questions.min((spec.askable)((spec.count)(length)));
        let toml = format!("questions = {questions}");
        let samples = make(spec.name, &toml, length, 2 * questions + 1, seed).unwrap();
        prop_assert_eq!(samples.len(), 2 * questions + 1);
        for sample in &samples {
            check(&reader, spec, sample, length, questions == 1);
            let first = sample.index - sample.index % questions;
            prop_assert_eq!(&sample.document, &samples[first].document);
            prop_assert_eq!(&sample.prompt[..sample.question_at], &samples[first].prompt[..samples[first].question_at]);
        }
        let longest = samples.iter().map(|s| s.prompt.len() + s.answer.len()).max().unwrap();
        prop_assert_eq!(longest, length);
    }
}

#[test]
fn the_longest_units_are_as_long_as_the_table_says() {
    let tokenizer = nano_tokenizer();
    let reader = Reader::new(tokenizer);
    for spec in &SPECS {
        let mut answer = 0;
        let mut unit = 0;
        for sample in make(spec.name, "", 1024, 48, 1).unwrap() {
            answer = answer.max(sample.answer.len());
            let body = reader.body(spec, &sample.prompt[..sample.question_at]).unwrap();
            let facts = body.facts.len() * spec.fact.split(' ').count() + body.links.len() * 5;
            unit = unit.max(facts.div_ceil((spec.count)(1024)));
        }
        assert_eq!(answer, spec.answer, "{}", spec.name);
        assert!(unit <= spec.unit && (unit == spec.unit || unit > 14), "{}: {unit}", spec.name);
    }
}

#[test]
fn sample_i_is_the_same_whatever_n_is() {
    for spec in &SPECS {
        let few = make(spec.name, "", 777, 3, 5).unwrap();
        let many = make(spec.name, "", 777, 9, 5).unwrap();
        assert_eq!(few, many[..3]);
        assert_ne!(many[0].prompt, many[1].prompt);
        assert_ne!(few, make(spec.name, "", 777, 3, 6).unwrap());
    }
}

#[test]
fn documents_are_pinned() {
    let samples: Vec<Sample> =
        SPECS.iter().flat_map(|spec| make(spec.name, "", 1024, 4, 0).unwrap()).collect();
    assert_eq!(golden(&samples), "3cfdad14ef54e2edd372e1072bcd1062a6d794601bce912b6fc1595bcf645cea");
}

#[test]
fn lengths_that_hold_no_document_are_refused_with_the_smallest_that_does() {
    for spec in &SPECS {
        let smallest = spec.smallest();
        assert!(make(spec.name, "", smallest, 1, 0).is_ok());
        for length in [0, 1, smallest / 2, smallest - 1] {
            let error = make(spec.name, "", length, 1, 0).unwrap_err().to_string();
            assert!(error.contains(&format!("at least {smallest}")), "{error}");
        }
    }
    let error = make("kv", "", 10_000_000, 1, 0).unwrap_err().to_string();
    assert!(error.contains("keys of their own"), "{error}");
}

#[test]
fn parameters_are_checked() {
    let error = |name: &str, toml: &str| make(name, toml, 512, 1, 0).unwrap_err().to_string();
    assert!(error("kv", "questions = 0").contains("kv.questions"));
    assert!(error("kv", "question = 2").contains("`questions`"));
    assert!(error("cwe", "questions = 2").contains("at most 1"));
    assert!(error("niah_multiquery", "questions = 6").contains("at most 5"));
}

#[test]
fn another_tokenizer_is_refused() {
    for (word, other) in [("\"amber\"", "\"ambre\""), ("\"secret\"", "\"sacred\"")] {
        let json = String::from_utf8_lossy(crate::nano().tokenizer).replace(word, other);
        let tokenizer = crate::testing::tokenizer(json.as_bytes());
        let task = find_task("niah_single", &params("")).unwrap();
        let error = task.samples(&tokenizer, 512, 1, 0).unwrap_err().to_string();
        assert!(error.contains("nano") && error.contains(word.trim_matches('"')), "{error}");
    }
}
