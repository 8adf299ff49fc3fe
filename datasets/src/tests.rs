//! The table, the scorers, and the tasks on English text.

use crate::{
    Sample, Scoring, TASKS, Task, TaskKind, find_task, nano, prompt_sha256,
    testing::{byte_tokenizer, golden, nano_tokenizer, params},
};
use oasis_core::text::Tokenizer;
use proptest::prelude::*;
use std::{collections::HashSet, io::Write};

fn task(name: &str, toml: &str) -> Box<dyn Task> {
    find_task(name, &params(toml)).unwrap()
}

fn refusal(name: &str, toml: &str) -> String {
    match find_task(name, &params(toml)) {
        Ok(_) => panic!("{name} accepts {toml}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_table_is_sound() {
    let names: HashSet<&str> = TASKS.iter().map(|entry| entry.name).collect();
    assert_eq!(names.len(), TASKS.len());
    for entry in TASKS {
        assert!(entry.about.ends_with('.') && entry.version > 0);
        if entry.kind == TaskKind::Dataset || entry.name.starts_with("ruler_qa") {
            // Without data there is no task, but an error that says where to get it, or which file is meant.
            let error = refusal(entry.name, "");
            assert!(error.contains("https://") || error.contains("not given; it is one of"), "{error}");
        } else {
            let task = task(entry.name, "");
            assert_eq!((task.name(), task.version()), (entry.name, entry.version));
            assert_eq!(task.scoring() == Scoring::TeacherForced, entry.kind == TaskKind::Fidelity);
        }
        for param in entry.params {
            // A known key of the wrong type is refused for its type, an unknown one with the known ones.
            assert!(refusal(entry.name, &format!("{} = []", param.name)).contains("invalid type"));
            assert!(refusal(entry.name, "colour = 1").contains(&format!("`{}`", param.name)));
        }
    }
    let error = refusal("kw", "");
    assert!(error.contains("did you mean `kv`") && error.contains("needle"), "{error}");
}

#[test]
fn the_bundle_is_whole() {
    let bundle = nano();
    let json = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
    assert_eq!(json(bundle.config)["num_hidden_layers"], 6);
    assert_eq!(json(bundle.generation_config)["eos_token_id"], 2);
    assert_eq!(json(bundle.tokenizer_config)["bos_token"], "<bos>");
    assert_eq!(json(bundle.eagle3_config)["num_hidden_layers"], 1);
    for (weights, tensor) in [
        (bundle.weights, "model.embed_tokens.weight"),
        (bundle.eagle3_weights, "midlayer.self_attn.q_proj.weight"),
    ] {
        let header = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
        let header = json(&weights[8..8 + header]);
        assert!(header.get(tensor).is_some(), "{tensor}");
    }
}

#[test]
fn exact_scores_want_the_whole_answer_and_its_end() {
    let tokenizer = nano_tokenizer();
    for entry in TASKS.iter().filter(|entry| entry.kind == TaskKind::Grammar) {
        let task = task(entry.name, "");
        let samples = task.samples(tokenizer, 600, 4, 1).unwrap();
        for sample in &samples {
            let score = |ids: &[u32]| task.score(sample, ids, "");
            let end = sample.answer.len() - 1;
            let mut wrong = sample.answer.clone();
            wrong[0] ^= 1;
            assert_eq!(score(&sample.answer), 1.0);
            assert_eq!(score(&[&sample.answer[..], &[5, 6]].concat()), 1.0);
            assert_eq!(sample.answer[end], 2);
            for bad in [&[], &sample.answer[..end], &wrong, &[&sample.answer[..end], &[31, 2]].concat()] {
                assert_eq!(score(bad), 0.0, "{}", sample.id);
            }
        }
    }
}

#[test]
fn number_scores_want_the_number_first() {
    let tokenizer = byte_tokenizer();
    for name in ["passkey", "needle"] {
        let task = task(name, "");
        for sample in task.samples(tokenizer, 3000, 3, 1).unwrap() {
            let score = |text: &str| task.score(&sample, &[], text);
            let gold = tokenizer.decode(&sample.answer).unwrap();
            let number = &sample.references[0];
            assert_eq!(score(&gold), 1.0, "{gold}");
            assert_eq!(score(&format!("{number}\nNext")), 1.0);
            for bad in ["", " ", "12", &format!("not {number}"), &number[..4], &format!("{number}7")] {
                assert_eq!(score(bad), 0.0, "{bad}");
            }
        }
    }
}

/// The rules of one retrieval sample.
fn check(tokenizer: &Tokenizer, sample: &Sample, length: usize) {
    let used = sample.prompt.len() + sample.max_new_tokens;
    assert!(used <= length && used + 24 >= length, "{}: {used} of {length}", sample.id);
    let (context, question) = sample.prompt.split_at(sample.question_at);
    assert!(question.len() >= 10);
    let number = &sample.references[0];
    let compact = |ids: &[u32]| tokenizer.decode(ids).unwrap().replace(char::is_whitespace, "");
    let times = if sample.task == "passkey" { 2 } else { 1 };
    assert_eq!(compact(context).matches(number.as_str()).count(), times);
    assert!(!compact(question).contains(number.as_str()));
    assert!(compact(&sample.answer).starts_with(number.as_str()));
    assert_eq!(sample.prompt_sha256, prompt_sha256(&sample.prompt));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn retrieval_prompts_fill_their_length(passkey: bool, bytes: bool, length in 250usize..3000, seed: u64) {
        let name = if passkey { "passkey" } else { "needle" };
        let tokenizer = if bytes { byte_tokenizer() } else { nano_tokenizer() };
        let length = if bytes { length * 4 } else { length };
        for sample in task(name, "").samples(tokenizer, length, 2, seed).unwrap() {
            check(tokenizer, &sample, length);
        }
    }

    #[test]
    fn windows_have_their_length(length in 2usize..3000, share in 0.0..1.0f64, seed: u64) {
        let continuation = 1 + (share * (length - 2) as f64) as usize;
        let task = task("fidelity", &format!("continuation = {continuation}"));
        for (tokenizer, bos) in [(byte_tokenizer(), false), (nano_tokenizer(), true)] {
            for sample in task.samples(tokenizer, length, 2, seed).unwrap() {
                prop_assert_eq!(sample.prompt.len() + continuation, length);
                prop_assert_eq!((sample.answer.len(), sample.question_at), (continuation, sample.prompt.len()));
                prop_assert_eq!(sample.prompt[0] == 1 && bos, bos);
                prop_assert!(task.score(&sample, &sample.answer, "").is_nan());
            }
        }
    }
}

#[test]
fn the_fact_is_where_it_should_be() {
    let tokenizer = byte_tokenizer();
    for name in ["passkey", "needle"] {
        let place = |toml: &str, seed: u64| -> f64 {
            let sample = &task(name, toml).samples(tokenizer, 8000, 1, seed).unwrap()[0];
            let text = tokenizer.decode(&sample.prompt[..sample.question_at]).unwrap();
            text.find(&sample.references[0]).unwrap() as f64 / text.len() as f64
        };
        for depth in [0.0, 0.25, 0.5, 1.0] {
            let found = place(&format!("depth = {depth:?}"), 4);
            assert!((found - depth).abs() < 0.06, "{name} {depth}: {found}");
        }
        let places: Vec<f64> = (0..40).map(|seed| place("", seed)).collect();
        for bounds in [0.0..0.25, 0.25..0.5, 0.5..0.75, 0.75..1.0] {
            assert!(places.iter().any(|p| bounds.contains(p)), "{name}: no fact in {bounds:?}");
        }
        assert!(refusal(name, "depth = 1.5").contains(&format!("{name}.depth")));
    }
}

#[test]
fn the_bundled_novel_holds_no_other_number_of_that_kind() {
    let novel = include_str!("../bundled/text/sense-and-sensibility.txt");
    let longest = novel.split(|c: char| !c.is_ascii_digit()).map(str::len).max();
    assert!(longest < Some(5), "{longest:?}");
}

#[test]
fn samples_do_not_depend_on_their_number() {
    let tokenizer = byte_tokenizer();
    for name in ["passkey", "needle", "fidelity"] {
        let task = task(name, "");
        let few = task.samples(tokenizer, 2000, 2, 5).unwrap();
        let many = task.samples(tokenizer, 2000, 5, 5).unwrap();
        assert_eq!(few, many[..2]);
        assert_eq!(many.iter().map(|s| &s.prompt_sha256).collect::<HashSet<_>>().len(), 5);
        assert_eq!(many[4].id, format!("{name}-2000-4"));
    }
}

#[test]
fn prompts_are_pinned() {
    let tokenizer = byte_tokenizer();
    let samples: Vec<Sample> = ["passkey", "needle", "fidelity"]
        .iter()
        .flat_map(|name| task(name, "").samples(tokenizer, 4000, 3, 0).unwrap())
        .collect();
    assert_eq!(golden(&samples), "74571aa809ac065e8305b57fc4a84712d6c564444fe3a670a034293aae54751b");
}

#[test]
fn lengths_that_do_not_fit_are_refused_with_what_would() {
    let tokenizer = byte_tokenizer();
    let refuse = |name: &str, toml: &str, length: usize| {
        task(name, toml).samples(tokenizer, length, 1, 0).unwrap_err().to_string()
    };
    for name in ["passkey", "needle"] {
        for length in [0, 1, 60] {
            let error = refuse(name, "", length);
            let least: usize = error.rsplit(' ').next().unwrap().parse().unwrap();
            assert!(error.contains("at least") && refuse(name, "", least - 1).contains("at least"));
            assert!(task(name, "").samples(tokenizer, least, 1, 0).is_ok(), "{error}");
        }
    }
    assert!(refuse("needle", "", 1_000_000).contains("needle.text"));
    assert!(refuse("fidelity", "", 1_000_000).contains("fidelity.text"));
    assert!(refuse("fidelity", "", 128).contains("at least 129"));
    assert!(refusal("fidelity", "continuation = 0").contains("at least 1"));
}

#[test]
fn a_text_of_ones_own_is_read() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for i in 0..400 {
        writeln!(file, "Line {i} says ‘très bien’ to everyone.").unwrap();
    }
    let toml = format!("text = {:?}", file.path());
    let tokenizer = nano_tokenizer();
    for name in ["needle", "fidelity"] {
        let own = task(name, &toml);
        assert_ne!(own.data_sha256(), task(name, "").data_sha256());
        let sample = &own.samples(tokenizer, 300, 1, 0).unwrap()[0];
        let text = tokenizer.decode(&sample.prompt).unwrap();
        assert!(text.contains("to everyone ."), "{text}");
    }
    assert!(refusal("needle", "text = \"/no/such/text\"").contains("/no/such/text"));
}
