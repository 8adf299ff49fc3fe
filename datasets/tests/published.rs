//! Scorers and loaders on published files and recorded predictions.
//!
//! The files lie in the folder that the environment variable `OASIS_DATA` names; without it these tests print SKIPPED.
//! Their names and where they come from: `datasets/README.md`.

use oasis_core::{registry::Params, text::Tokenizer};
use oasis_datasets::{
    Sample, Task, find_task,
    scorers::{Gold, Scorer, infinitebench::InfiniteBenchMetric, rouge, text},
    workload::{TraceFormat, Workload},
};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The file, or `None` without the data.
fn data(name: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("OASIS_DATA") else {
        println!("SKIPPED: set OASIS_DATA to the folder with {name}");
        return None;
    };
    let path = Path::new(&folder).join(name);
    assert!(path.is_file(), "{} is missing", path.display());
    Some(path)
}

fn records(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn tokenizer() -> Tokenizer {
    let json = include_bytes!("fixtures/novel-bpe/tokenizer.json");
    let config = include_bytes!("fixtures/novel-bpe/tokenizer_config.json");
    Tokenizer::from_json(json, Some(config)).unwrap()
}

fn task(name: &str, path: &Path, toml: &str) -> Box<dyn Task> {
    let table = format!("data = {path:?}\n{toml}").parse().unwrap();
    find_task(name, &Params { table, seed: 0 }).unwrap()
}

/// All samples of a task, each within its length; the gold answer of each scores 1.
fn all(task: &dyn Task, tokenizer: &Tokenizer, length: usize, n: usize) -> Vec<Sample> {
    let samples = task.samples(tokenizer, length, n, 42).unwrap();
    for sample in &samples {
        assert!(sample.prompt.len() + sample.max_new_tokens <= length, "{}", sample.id);
        let gold = tokenizer.decode(&sample.answer).unwrap();
        let score = task.score(sample, &[], &gold);
        assert!((score - 1.0).abs() < 1e-6, "{}: {score} for {gold}", sample.id);
        assert_eq!(task.score(sample, &[], "zzz"), 0.0, "{}", sample.id);
    }
    samples
}

#[test]
fn scores_are_those_of_the_python_packages() {
    let cases = include_str!("fixtures/scorers.jsonl");
    let mut n = 0;
    for case in cases.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let [prediction, reference] = ["prediction", "reference"].map(|key| case[key].as_str().unwrap());
        for (key, score) in [
            ("qa_f1", text::qa_f1(prediction, reference)),
            ("rouge_l", rouge::rouge_l(prediction, reference)),
            ("rouge_lsum", rouge::rouge_lsum(prediction, reference)),
            ("similarity", text::similarity_percent(prediction, reference)),
        ] {
            let published = case[key].as_f64().unwrap();
            assert!((score - published).abs() < 1e-9, "{key} of {case}: {score}");
        }
        n += 1;
    }
    assert_eq!(n, 150);
}

#[test]
fn gsm8k_flags_are_reproduced() {
    let Some(path) = data("gsm8k/example_model_solutions-part1.jsonl") else { return };
    let kinds = ["6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"];
    let (mut right, mut flags) = ([0; 4], 0);
    for record in records(&path) {
        let truth = record["ground_truth"].as_str().unwrap();
        let gold = [truth.rsplit_once("#### ").map_or(truth, |(_, number)| number).to_owned()];
        for (kind, right) in kinds.iter().zip(&mut right) {
            let solution = record[kind]["solution"].as_str().unwrap();
            let score = Scorer::LastNumber.score(solution, Gold { references: &gold, choices: &[] });
            assert_eq!(score == 1.0, record[kind]["is_correct"].as_bool().unwrap(), "{solution}");
            *right += usize::from(score == 1.0);
            flags += 1;
        }
    }
    assert_eq!((flags, right), (2640, [146, 266, 225, 371]));
}

#[test]
fn infinitebench_scores_are_reproduced() {
    use InfiniteBenchMetric as M;
    for (name, metric, n, published) in [
        ("passkey", M::FirstDigits, 590, 100.00),
        ("number_string", M::FirstDigits, 590, 100.00),
        ("kv_retrieval", M::OneOfWords, 500, 89.00),
        ("math_find", M::FirstNumber, 350, 60.00),
        ("longbook_choice_eng", M::Choice, 229, 67.25),
        ("longdialogue_qa_eng", M::OneOfUpperWords, 200, 8.50),
        ("longbook_qa_eng", M::QaF1, 351, 22.44),
    ] {
        let Some(path) = data(&format!("infinitebench-predictions/gpt4_{name}.jsonl")) else { return };
        let records = records(&path);
        let scores = records.iter().map(|record| {
            let references: Vec<String> = match &record["ground_truth"] {
                Value::Array(list) => list.iter().map(|v| v.as_str().unwrap().to_owned()).collect(),
                Value::String(text) => vec![text.clone()],
                number => vec![number.to_string()],
            };
            let gold = Gold { references: &references, choices: &[] };
            Scorer::InfiniteBench(metric).score(record["prediction"].as_str().unwrap(), gold)
        });
        let mean = 100.0 * scores.sum::<f64>() / records.len() as f64;
        assert_eq!(records.len(), n, "{name}");
        assert!((mean - published).abs() < 0.005, "{name}: {mean}, published {published}");
    }
}

#[test]
fn gsm8k_is_loaded_with_eight_examples() {
    let (Some(test), Some(train)) = (data("gsm8k/test-part1.jsonl"), data("gsm8k/train.jsonl")) else {
        return;
    };
    let task = task("gsm8k", &test, &format!("train = {train:?}"));
    let samples = all(task.as_ref(), &tokenizer(), 4096, 660);
    assert_eq!(task.files()[1].published, Some(true));
    assert!(samples.iter().all(|s| s.question_at == samples[0].question_at && s.question_at > 800));
}

#[test]
fn longbench_files_are_loaded() {
    for (name, n) in [("narrativeqa", 10), ("multifieldqa_zh", 40), ("passage_retrieval_zh", 40)] {
        let Some(path) = data(&format!("longbench/{name}.jsonl")) else { return };
        let task = task("longbench", &path, "");
        let samples = all(task.as_ref(), &tokenizer(), 8192, n);
        assert!(samples.iter().any(|s| s.cut > 0) && samples.iter().all(|s| s.question_at < s.prompt.len()));
    }
}

#[test]
fn rulers_own_files_are_loaded() {
    let Some(path) = data("ruler/niah_multikey_3-4096.jsonl") else { return };
    let task = task("ruler_upstream", &path, "task = \"niah_multikey_3\"");
    let tokenizer = tokenizer();
    for sample in all(task.as_ref(), &tokenizer, 16_384, 150) {
        let context = tokenizer.decode(&sample.prompt[..sample.question_at]).unwrap();
        let question = tokenizer.decode(&sample.prompt[sample.question_at..]).unwrap();
        assert!(context.contains(&sample.references[0]) && !question.contains(&sample.references[0]));
    }
}

#[test]
fn retrieval_files_are_loaded() {
    let tokenizer = tokenizer();
    for lines in [200, 600] {
        let Some(path) = data(&format!("longeval/{lines}_lines.jsonl")) else { return };
        let samples = all(task("longeval_lines", &path, "").as_ref(), &tokenizer, 65_536, 50);
        assert!(samples.iter().all(|s| {
            let question = tokenizer.decode(&s.prompt[s.question_at..]).unwrap();
            question.contains("Now the record is over.") && question.len() < 200
        }));
    }
    let Some(path) = data("kv-retrieval/kv-retrieval-75_keys.jsonl") else { return };
    all(task("kv_retrieval", &path, "position = 37").as_ref(), &tokenizer, 16_384, 250);
}

#[test]
fn nq_open_is_loaded_with_twenty_passages() {
    let Some(path) = data("nq-open/nq-open-oracle.jsonl") else { return };
    let task = task("nq_open", &path, "");
    let tokenizer = tokenizer();
    for sample in all(task.as_ref(), &tokenizer, 16_384, 300) {
        let context = tokenizer.decode(&sample.prompt[..sample.question_at]).unwrap();
        assert!(context.contains("\n[20] ") && !context.contains("\n[21] "), "{context}");
    }
}

#[test]
fn traces_have_the_published_lengths() {
    let load = |format, name: &str| Some(Workload::load(format, Some(&data(name)?)).unwrap());
    let Some(w) = load(TraceFormat::Mooncake, "traces/mooncake_conversation-part1.jsonl") else { return };
    let s = w.statistics();
    let (prompt, output) = (s.prompt_tokens.unwrap(), s.output_tokens.unwrap());
    assert_eq!((s.requests + w.skipped, prompt.mean.round(), prompt.max), (8000, 12_396.0, 124_847.0));
    assert!((output.mean - 347.0).abs() < 1.0 && (s.duration_s - 2436.0).abs() < 1.0, "{s:?}");
    assert!(prompt.p50 < prompt.p90 && prompt.p90 < prompt.p99);
    let w = load(TraceFormat::Mooncake, "traces/mooncake_synthetic.jsonl").unwrap();
    let s = w.statistics();
    assert_eq!((s.requests + w.skipped, s.prompt_tokens.unwrap().max), (3993, 191_378.0));
    for (name, n) in [("code.csv", 8819), ("conv-part1.csv", 12_000)] {
        let w = load(TraceFormat::Azure, &format!("traces/AzureLLMInferenceTrace_{name}")).unwrap();
        let s = w.statistics();
        println!("{name}: {} skipped, {s:?}", w.skipped);
        assert_eq!(s.requests + w.skipped, n);
        assert!(s.duration_s > 0.0 && w.sample(100, 7).unwrap().len() == 100);
    }
}
