//! The rules of the thirteen types, on the prompts that a model gets.

use super::SPECS;
use crate::{
    Sample, TASKS, Task, TaskKind, find_task,
    testing::{
        byte_tokenizer, golden, hotpot, nano_tokenizer, novel_tokenizer, params, prefixing_tokenizer, squad,
    },
};
use oasis_core::text::Tokenizer;
use std::collections::{HashMap, HashSet};

/// A task; question answering reads documents made from the novel.
fn task(name: &str, toml: &str) -> Box<dyn Task> {
    let data = match name {
        "ruler_qa_1" => squad(),
        "ruler_qa_2" => hotpot(),
        _ => return find_task(name, &params(toml)).unwrap(),
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.json");
    std::fs::write(&path, data).unwrap();
    find_task(name, &params(&format!("data = {path:?}\n{toml}"))).unwrap()
}

fn samples(name: &str, tokenizer: &Tokenizer, length: usize, n: usize) -> Vec<Sample> {
    task(name, "").samples(tokenizer, length, n, 42).unwrap()
}

fn text(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    tokenizer.decode(ids).unwrap()
}

#[test]
fn the_table_has_all_thirteen() {
    let rows: Vec<&str> = TASKS.iter().filter(|t| t.kind == TaskKind::Ruler).map(|t| t.name).collect();
    let specs: Vec<&str> = SPECS.iter().map(|s| s.name).collect();
    assert_eq!(rows, specs);
}

/// What holds for every sample of every type.
fn check(tokenizer: &Tokenizer, sample: &Sample, length: usize) {
    let used = sample.prompt.len() + sample.max_new_tokens;
    assert!(used <= length && used * 100 >= length * 95, "{}: {used} of {length}", sample.id);
    // The prompt is what one encoding of its text gives.
    let whole = text(tokenizer, &sample.prompt);
    assert_eq!(tokenizer.encode(&whole, true).unwrap(), sample.prompt, "{}", sample.id);
    let (context, question) = sample.prompt.split_at(sample.question_at);
    let (context, question) = (text(tokenizer, context), text(tokenizer, question));
    // A tokenizer may join the context's full stop with the line end behind it.
    assert!(question.find('\n').is_some_and(|at| at < 3) && question.len() > 20, "{question}");
    let answer = text(tokenizer, &sample.answer);
    for reference in sample.references.iter().filter(|r| *r != "yes") {
        assert!(context.contains(reference.as_str()), "{}: no {reference}", sample.id);
        assert!(!question.contains(reference.as_str()), "{}: {reference} is given away", sample.id);
        assert!(answer.contains(reference.as_str()));
    }
}

#[test]
fn every_type_fills_its_length_with_any_tokenizer() {
    for spec in &SPECS {
        for (tokenizer, lengths) in [
            (novel_tokenizer(), [4096, 5000]),
            (byte_tokenizer(), [9001, 12_000]),
            (prefixing_tokenizer(), [9000, 9001]),
        ] {
            // One blank more than the text has in front of it: what it decodes to is not what was encoded.
            let prefixed = std::ptr::eq(tokenizer, prefixing_tokenizer());
            for length in lengths {
                for mut sample in samples(spec.name, tokenizer, length, 3) {
                    if prefixed {
                        sample.prompt =
                            tokenizer.encode(text(tokenizer, &sample.prompt).trim_start(), true).unwrap();
                    }
                    check(tokenizer, &sample, length);
                }
            }
        }
    }
}

#[test]
fn samples_do_not_depend_on_their_number_or_order() {
    for spec in &SPECS {
        let many = samples(spec.name, novel_tokenizer(), 4096, 7);
        assert_eq!(samples(spec.name, novel_tokenizer(), 4096, 2), many[..2], "{}", spec.name);
        let hashes: HashSet<&str> = many.iter().map(|s| s.prompt_sha256.as_str()).collect();
        assert_eq!(hashes.len(), 7, "{}", spec.name);
        let other = task(spec.name, "").samples(novel_tokenizer(), 4096, 1, 43).unwrap();
        assert_ne!(other[0].prompt_sha256, many[0].prompt_sha256, "{}", spec.name);
    }
}

#[test]
fn one_small_sample_of_each_type_is_frozen() {
    for spec in &SPECS {
        let length = if spec.name == "ruler_qa_2" { 3000 } else { 1000 };
        let sample = &samples(spec.name, novel_tokenizer(), length, 1)[0];
        let parts = [
            text(novel_tokenizer(), &sample.prompt[..sample.question_at]),
            text(novel_tokenizer(), &sample.prompt[sample.question_at..]),
            text(novel_tokenizer(), &sample.answer),
        ];
        insta::assert_snapshot!(spec.name, parts.join("\n-----"));
    }
}

#[test]
fn prompts_are_pinned() {
    let all: Vec<Sample> = SPECS.iter().flat_map(|s| samples(s.name, novel_tokenizer(), 4096, 2)).collect();
    insta::assert_snapshot!("pins", golden(&all));
}

#[test]
fn needles_are_as_many_as_they_should_be() {
    for (name, needles, references) in [
        ("ruler_niah_single_1", 1, 1),
        ("ruler_niah_single_2", 1, 1),
        ("ruler_niah_single_3", 1, 1),
        ("ruler_niah_multikey_1", 4, 1),
        ("ruler_niah_multivalue", 4, 4),
        ("ruler_niah_multiquery", 4, 4),
    ] {
        for sample in samples(name, novel_tokenizer(), 4096, 4) {
            let context = text(novel_tokenizer(), &sample.prompt[..sample.question_at]);
            let question = text(novel_tokenizer(), &sample.prompt[sample.question_at..]);
            let lines: Vec<&str> = context.split("Remember: the secret ").skip(1).collect();
            assert_eq!((lines.len(), sample.references.len()), (needles, references), "{name}");
            let mut asked = HashSet::new();
            for reference in &sample.references {
                assert_eq!(context.matches(reference.as_str()).count(), 1, "{name}: {reference}");
                let line = lines.iter().find(|l| l.contains(reference.as_str())).unwrap();
                let key = line.split(' ').nth(2).unwrap();
                assert!(question.contains(key), "{name}: {key} is not asked for");
                asked.insert(key);
            }
            assert_eq!(asked.len(), if name == "ruler_niah_multiquery" { 4 } else { 1 });
        }
    }
}

#[test]
fn needles_among_needles_have_keys_of_their_own() {
    for name in ["ruler_niah_multikey_2", "ruler_niah_multikey_3"] {
        for sample in samples(name, novel_tokenizer(), 8192, 3) {
            let context = text(novel_tokenizer(), &sample.prompt[..sample.question_at]);
            let lines: Vec<&str> = context.lines().skip(1).collect();
            let keys: HashSet<&str> = lines.iter().map(|l| l.split(' ').nth(5).unwrap()).collect();
            assert!(lines.len() > 60 && keys.len() == lines.len(), "{name}: {} lines", lines.len());
            let right: Vec<&&str> = lines.iter().filter(|l| l.contains(&sample.references[0])).collect();
            let key = right[0].split(' ').nth(5).unwrap();
            assert!(
                right.len() == 1
                    && text(novel_tokenizer(), &sample.prompt[sample.question_at..]).contains(key)
            );
        }
    }
}

#[test]
fn needles_lie_at_all_depths() {
    for name in ["ruler_niah_single_1", "ruler_niah_single_2", "ruler_niah_multikey_2"] {
        let places: Vec<f64> = samples(name, novel_tokenizer(), 4096, 40)
            .iter()
            .map(|s| {
                let context = text(novel_tokenizer(), &s.prompt[..s.question_at]);
                context.find(&s.references[0]).unwrap() as f64 / context.len() as f64
            })
            .collect();
        for bounds in [0.0..0.25, 0.25..0.5, 0.5..0.75, 0.75..1.0] {
            assert!(places.iter().any(|p| bounds.contains(p)), "{name}: no needle in {bounds:?}");
        }
    }
}

#[test]
fn chains_lead_from_the_value_to_all_five_names() {
    for sample in samples("ruler_vt", novel_tokenizer(), 4096, 5) {
        let context = text(novel_tokenizer(), &sample.prompt[..sample.question_at]);
        let question = text(novel_tokenizer(), &sample.prompt[sample.question_at..]);
        let (_, problem) = context.split_once("\n\nKeep track").unwrap();
        let mut values: HashMap<&str, &str> = HashMap::new();
        for line in problem.lines().filter_map(|l| l.strip_prefix("VAR ")) {
            let (name, source) = line.split_once(" = ").unwrap();
            let value = source.strip_prefix("VAR ").map_or(source, |from| values[from]);
            values.insert(name, value);
        }
        let value = values[sample.references[0].as_str()];
        assert!(question.contains(value) && value.len() == 5);
        let mut names: Vec<&str> = values.into_keys().collect();
        let mut references = sample.references.clone();
        names.sort_unstable();
        references.sort_unstable();
        assert_eq!((names.len(), names), (5, references.iter().map(String::as_str).collect()));
    }
}

#[test]
fn common_words_come_thirty_times_and_others_three_times() {
    for (length, common, other) in [(4096, 30, 3), (2048, 6, 1)] {
        for sample in samples("ruler_cwe", novel_tokenizer(), length, 3) {
            let context = text(novel_tokenizer(), &sample.prompt[..sample.question_at]);
            let list = context.lines().last().unwrap();
            let mut counts: HashMap<&str, usize> = HashMap::new();
            for (i, entry) in list.split(' ').collect::<Vec<_>>().chunks(2).enumerate() {
                assert_eq!(entry[0], format!("{}.", i + 1));
                *counts.entry(entry[1]).or_default() += 1;
            }
            for (word, n) in counts {
                let gold = sample.references.iter().any(|r| r == word);
                assert_eq!(n, if gold { common } else { other }, "{word} of {}", sample.id);
            }
            assert_eq!(sample.references.len(), 10);
        }
    }
}

#[test]
fn frequent_words_are_the_most_frequent() {
    for length in [1024, 8192] {
        for sample in samples("ruler_fwe", novel_tokenizer(), length, 3) {
            let context = text(novel_tokenizer(), &sample.prompt[..sample.question_at]);
            let mut counts: HashMap<&str, usize> = HashMap::new();
            for word in context.lines().last().unwrap().split(' ') {
                *counts.entry(word).or_default() += 1;
            }
            let mut words: Vec<(usize, &str)> = counts.into_iter().map(|(w, n)| (n, w)).collect();
            words.sort_unstable_by(|a, b| b.cmp(a));
            let found: Vec<&str> = words[..4].iter().map(|(_, w)| *w).collect();
            let gold: Vec<&str> = sample.references.iter().map(String::as_str).collect();
            assert_eq!((found[0], &found[1..]), ("...", &gold[..]));
            assert!(words[3].0 > words[4].0, "the third is not unique: {words:?}");
        }
    }
}

#[test]
fn short_lengths_are_refused_with_what_would_do() {
    for spec in &SPECS {
        let of = |length| task(spec.name, "").samples(novel_tokenizer(), length, 1, 42);
        let error = of(60).unwrap_err().to_string();
        let least: usize = error.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(error.starts_with("length: 60 tokens") && error.contains(spec.name), "{error}");
        // Each length draws other keys, which may have a few tokens more or fewer.
        assert!(of(least - 40).is_err(), "{error}");
        of(least + 40).unwrap();
    }
}

#[test]
fn nano_is_refused_by_name() {
    for spec in &SPECS {
        let error = task(spec.name, "").samples(nano_tokenizer(), 2048, 1, 42).unwrap_err().to_string();
        assert!(error.contains(spec.name) && error.contains("`niah_single`"), "{error}");
    }
}

#[test]
fn chat_templates_go_around_the_question() {
    let tokenizer = novel_tokenizer();
    for name in ["ruler_niah_single_2", "ruler_cwe", "ruler_qa_1"] {
        let plain = &samples(name, tokenizer, 6000, 1)[0];
        let sample = &task(name, "template = \"chat\"").samples(tokenizer, 6000, 1, 42).unwrap()[0];
        let specials = |ids: &[u32]| -> Vec<String> {
            ids.iter().filter(|id| **id < 3).filter_map(|id| tokenizer.piece(*id)).collect()
        };
        assert_eq!(specials(&sample.prompt), ["<|begin|>", "<|turn|>", "<|end|>", "<|turn|>"]);
        assert_eq!(specials(&plain.prompt), ["<|begin|>"]);
        let tail = text(tokenizer, &sample.prompt[sample.question_at..]);
        let lead = text(tokenizer, &plain.prompt).rsplit(['?', ':', '\n']).next().unwrap().trim().to_owned();
        assert!(tail.contains("assistant\n\n") && tail.ends_with(&lead), "{tail}");
        let used = sample.prompt.len() + sample.max_new_tokens;
        assert!((5700..=6000).contains(&used), "{used}");
    }
}

#[test]
fn question_answering_wants_data_and_keeps_to_it() {
    for (name, host) in [("ruler_qa_1", "rajpurkar.github.io"), ("ruler_qa_2", "huggingface.co")] {
        let error = find_task(name, &params("")).err().unwrap().to_string();
        assert!(error.contains(host) && error.contains(&format!("{name}.data")), "{error}");
        let own = task(name, "");
        assert_eq!(own.files().len(), 1);
        assert_eq!(own.data_sha256(), Some(own.files()[0].sha256.as_str()));
        let error = own.samples(novel_tokenizer(), 4096, 5000, 0).unwrap_err().to_string();
        assert!(error.contains("questions") && error.contains("at most"), "{error}");
        let error = own.samples(novel_tokenizer(), 4_000_000, 1, 0).unwrap_err().to_string();
        assert!(error.contains("has no filler left"), "{error}");
    }
}

#[test]
fn answers_score_one_and_others_nothing() {
    for spec in &SPECS {
        let task = task(spec.name, "");
        for sample in samples(spec.name, novel_tokenizer(), 4096, 2) {
            let gold = text(novel_tokenizer(), &sample.answer);
            assert_eq!(task.score(&sample, &[], &gold), 1.0, "{gold}");
            assert_eq!(task.score(&sample, &[], "no idea"), 0.0);
            if sample.references.len() == 4 {
                assert_eq!(task.score(&sample, &[], &sample.references[1]), 0.25);
            }
        }
    }
}

#[test]
fn settings_are_checked() {
    let error = |toml: &str| find_task("ruler_vt", &params(toml)).err().unwrap().to_string();
    assert!(error("max_new_tokens = 0").contains("published: 30"));
    assert!(error("template = \"jinja\"").contains("plain"));
    assert!(error("tempalte = \"chat\"").contains("did you mean `template`"));
    let sample = &task("ruler_vt", "max_new_tokens = 64").samples(novel_tokenizer(), 2048, 1, 0).unwrap()[0];
    assert_eq!(sample.max_new_tokens, 64);
    check(novel_tokenizer(), sample, 2048);
}
