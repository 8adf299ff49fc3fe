//! RULER's types with a real model's tokenizer: exactness and speed.
//!
//! The model is the one that `oasis fetch smollm2` gets; without it these tests print SKIPPED.

use oasis_core::{checkpoint::Checkpoint, registry::Params, text::Tokenizer};
use oasis_datasets::{TASKS, Task, TaskKind, find_task};
use std::path::PathBuf;
use std::time::Instant;

fn tokenizer() -> Option<Tokenizer> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    let path = cache.join("oasis/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    if !path.is_file() {
        println!("SKIPPED: {} is missing; `oasis fetch smollm2` gets it", path.display());
        return None;
    }
    Some(Checkpoint::open(&path).unwrap().tokenizer)
}

/// Paragraphs of the bundled novel with a question each, in the form of SQuAD 2.0 or HotpotQA.
fn questions(hotpot: bool) -> String {
    let novel = include_str!("../bundled/text/sense-and-sensibility.txt");
    let join = |p: &str| p.split_whitespace().collect::<Vec<_>>().join(" ");
    let paragraphs: Vec<String> =
        novel.split("\n\n").map(join).filter(|p| (100..900).contains(&p.len())).collect();
    let answer = |p: &str| p.split(' ').take(3).collect::<Vec<_>>().join(" ");
    let value = if hotpot {
        let records = paragraphs.chunks(10).map(|c| {
            let context: Vec<_> = c.iter().map(|p| serde_json::json!(["Title", [p]])).collect();
            serde_json::json!({"question": "How does it begin?", "answer": answer(&c[0]), "context": context})
        });
        records.collect::<serde_json::Value>()
    } else {
        let paragraphs = paragraphs.iter().map(|p| {
            let qa = serde_json::json!({"question": "How does it begin?", "answers": [{"text": answer(p)}]});
            serde_json::json!({"context": p, "qas": [qa]})
        });
        serde_json::json!({"data": [{"paragraphs": paragraphs.collect::<serde_json::Value>()}]})
    };
    value.to_string()
}

/// The thirteen tasks.
fn tasks() -> Vec<(&'static str, Box<dyn Task>)> {
    let dir = tempfile::tempdir().unwrap();
    let rows = TASKS.iter().filter(|entry| entry.kind == TaskKind::Ruler);
    let build = rows.map(|entry| {
        let mut table = toml::Table::new();
        if entry.name.starts_with("ruler_qa") {
            let path = dir.path().join(entry.name);
            std::fs::write(&path, questions(entry.name == "ruler_qa_2")).unwrap();
            table.insert("data".to_owned(), path.to_str().unwrap().into());
        }
        (entry.name, find_task(entry.name, &Params { table, seed: 0 }).unwrap())
    });
    build.collect()
}

#[test]
fn prompts_are_what_one_encoding_gives() {
    let Some(tokenizer) = tokenizer() else { return };
    for (name, task) in tasks() {
        for length in [2048, 4096, 32_768] {
            for sample in task.samples(&tokenizer, length, 4, 42).unwrap() {
                let used = sample.prompt.len() + sample.max_new_tokens;
                // Whole documents leave a gap in short prompts that none of them fits.
                let fill = if name.starts_with("ruler_qa") && length < 4096 { 90 } else { 95 };
                assert!(used <= length && used * 100 >= length * fill, "{name}: {used} of {length}");
                let text = tokenizer.decode(&sample.prompt).unwrap();
                assert_eq!(tokenizer.encode(&text, true).unwrap(), sample.prompt, "{}", sample.id);
            }
        }
    }
}

#[test]
fn chat_templates_of_real_models_work() {
    let Some(tokenizer) = tokenizer() else { return };
    let table = "template = \"chat\"".parse().unwrap();
    let task = find_task("ruler_niah_single_2", &Params { table, seed: 0 }).unwrap();
    let sample = &task.samples(&tokenizer, 2048, 1, 42).unwrap()[0];
    let pieces: Vec<String> = sample.prompt.iter().filter_map(|id| tokenizer.piece(*id)).collect();
    assert_eq!(pieces.iter().filter(|p| *p == "<|im_start|>").count(), 3, "system, user, assistant");
    let tail = tokenizer.decode(&sample.prompt[sample.question_at..]).unwrap();
    assert!(tail.contains("assistant\nAccording to the text above, the secret number of"), "{tail}");
}

/// The stated speed: 13 tasks at 4 lengths, 100 samples each, in less than a minute on two cores.
#[test]
#[ignore = "a measurement; run it alone, in release mode"]
fn a_whole_suite_takes_less_than_a_minute() {
    let Some(tokenizer) = tokenizer() else { return };
    let tasks = tasks();
    let start = Instant::now();
    let mut tokens = 0;
    for (name, task) in &tasks {
        let began = Instant::now();
        for length in [4096, 8192, 16_384, 32_768] {
            let samples = task.samples(&tokenizer, length, 100, 42).unwrap();
            assert_eq!(samples.len(), 100);
            tokens += samples.iter().map(|s| s.prompt.len()).sum::<usize>();
        }
        println!("{name}: {:.2} s", began.elapsed().as_secs_f64());
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{tokens} tokens in {seconds:.1} s on {} threads", rayon::current_num_threads());
    assert!(seconds < 60.0, "{seconds} s");
}
