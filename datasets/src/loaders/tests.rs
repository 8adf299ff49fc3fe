//! Loaders on small files of the published formats.

use crate::{
    Sample, TASKS, Task, TaskKind, find_task,
    prompt::common,
    testing::{byte_tokenizer, novel_tokenizer, params},
};
use std::collections::HashSet;

/// A folder with the files that a test gives.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        Self(dir)
    }

    /// A task; `@name` in its settings is the path of a file.
    fn build(&self, task: &str, toml: &str) -> oasis_core::Result<Box<dyn Task>> {
        let at = format!("{}/", self.0.path().display());
        find_task(task, &params(&toml.replace('@', &at)))
    }

    fn task(&self, task: &str, toml: &str) -> Box<dyn Task> {
        self.build(task, toml).unwrap()
    }

    fn error(&self, task: &str, toml: &str) -> String {
        self.build(task, toml).err().unwrap().to_string()
    }
}

fn text(ids: &[u32]) -> String {
    novel_tokenizer().decode(ids).unwrap()
}

/// One sample, whose gold answer scores 1 and whose question begins where it says.
fn first(task: &dyn Task, length: usize) -> Sample {
    let samples = task.samples(novel_tokenizer(), length, 1, 42).unwrap();
    let sample = samples.into_iter().next().unwrap();
    assert!(sample.prompt.len() + sample.max_new_tokens <= length);
    assert_eq!(task.score(&sample, &[], &text(&sample.answer)), 1.0, "{}", text(&sample.answer));
    assert_eq!(task.score(&sample, &[], "nothing of the kind"), 0.0);
    sample
}

fn question(sample: &Sample) -> String {
    text(&sample.prompt[sample.question_at..])
}

const GSM8K_TRAIN: &str = r##"{"question": "Ann has 2 pens and buys 3.", "answer": "She has 2+3=<<2+3=5>>5 pens.\n#### 5"}
{"question": "Bob sells 1,000 of 3,000.", "answer": "Left are 3,000-1,000=<<3000-1000=2000>>2,000.\n#### 2,000"}
"##;
const GSM8K_TEST: &str = r##"{"question": "How many legs have 3 cats?", "answer": "3*4=<<3*4=12>>12 legs.\n#### 12"}
"##;

#[test]
fn gsm8k_shows_worked_examples_from_the_training_file() {
    let folder = Folder::new(&[("train", GSM8K_TRAIN), ("test", GSM8K_TEST)]);
    let task = folder.task("gsm8k", "data = '@test'\ntrain = '@train'\nshots = 2");
    let sample = first(task.as_ref(), 1024);
    let context = text(&sample.prompt[..sample.question_at]);
    assert!(
        context.contains("Answer: She has 2+3=5 pens. The answer is 5.") && !context.contains("<<"),
        "{context}"
    );
    assert!(context.contains("The answer is 2000."));
    assert_eq!(question(&sample), "Question: How many legs have 3 cats?\nAnswer:");
    assert_eq!(sample.references, ["12"]);
    assert_eq!(task.files().len(), 2);
    assert_ne!(task.data_sha256(), Some(task.files()[0].sha256.as_str()));
    assert_eq!(task.files()[0].published, Some(false));
    let bare = folder.task("gsm8k", "data = '@test'\nshots = 0");
    assert_eq!(first(bare.as_ref(), 1024).question_at, 1);
    let error = folder.error("gsm8k", "data = '@test'");
    assert!(error.contains("gsm8k.train") && error.contains("17f347dc"), "{error}");
    assert!(folder.error("gsm8k", "data = '@test'\ntrain = '@train'").contains("8 worked examples"));
    let folder = Folder::new(&[("test", r#"{"question": "?", "answer": "5"}"#)]);
    assert!(folder.error("gsm8k", "data = '@test'\nshots = 0").contains("record 1"));
}

#[test]
fn aime_takes_what_the_length_leaves() {
    let folder = Folder::new(&[
        ("a", r#"{"id": "2024-I-1", "problem": "Find $x$.", "expected_answer": "073"}"#),
        ("b", r#"{"problem": "Find it.", "answer": 1000}"#),
    ]);
    let sample = first(folder.task("aime", "data = '@a'").as_ref(), 2000);
    assert_eq!(sample.prompt.len() + sample.max_new_tokens, 2000);
    assert_eq!(sample.references, ["73"]);
    assert_eq!(
        first(folder.task("aime", "data = '@a'\nmax_new_tokens = 50").as_ref(), 500).max_new_tokens,
        50
    );
    assert!(folder.error("aime", "data = '@b'").contains("`1000` is no integer from 0 to 999"));
}

#[test]
fn gpqa_shuffles_its_choices_the_same_way_at_every_length() {
    let header = "Record ID,Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3";
    let rows: Vec<String> =
        (0..12).map(|i| format!("rec{i},\"Which, of\nall \"\"{i}\"\"?\",right {i},w1,\"w, 2\",w3")).collect();
    let folder = Folder::new(&[("gpqa.csv", &format!("{header}\n{}\n", rows.join("\n")))]);
    let task = folder.task("gpqa", "data = '@gpqa.csv'");
    first(task.as_ref(), 600);
    let samples = task.samples(byte_tokenizer(), 2000, 12, 42).unwrap();
    let other = task.samples(byte_tokenizer(), 3000, 12, 42).unwrap();
    let mut letters = HashSet::new();
    for (i, (sample, other)) in samples.iter().zip(other).enumerate() {
        let letter = sample.references[0].as_str();
        let at = ["A", "B", "C", "D"].iter().position(|l| *l == letter).unwrap();
        assert_eq!((sample.choices[at].as_str(), &sample.prompt), (&*format!("right {i}"), &other.prompt));
        letters.insert(letter.to_owned());
    }
    assert!(letters.len() > 2, "{letters:?}");
    assert_eq!(task.chance(), 0.25);
    let folder = Folder::new(&[("gpqa.csv", "Question\nWhat?\n")]);
    assert!(folder.error("gpqa", "data = '@gpqa.csv'").contains("record 1"));
}

fn longbench(dataset: &str, context: &str, answer: &str) -> String {
    let classes =
        if dataset == "trec" { serde_json::json!(["Food", "City"]) } else { serde_json::Value::Null };
    serde_json::json!({"input": "Which one?", "context": context, "answers": [answer], "length": 5,
        "dataset": dataset, "language": "en", "all_classes": classes, "_id": "ab"})
    .to_string()
}

#[test]
fn longbench_is_cut_in_the_middle_unless_told_otherwise() {
    let long = "one two three. ".repeat(400);
    let folder = Folder::new(&[("qa", &longbench("hotpotqa", &long, "a blue house"))]);
    let task = folder.task("longbench", "data = '@qa'");
    let sample = first(task.as_ref(), 500);
    assert_eq!(sample.prompt.len() + sample.max_new_tokens, 500);
    assert!(sample.cut > 100 && question(&sample).contains("Question: Which one?\nAnswer:"));
    let whole = &task.samples(novel_tokenizer(), 9000, 1, 0).unwrap()[0];
    assert_eq!((whole.cut, whole.prompt.len()), (0, sample.prompt.len() + sample.cut));
    assert!(common(&whole.prompt, &sample.prompt) >= sample.prompt.len().div_ceil(2));
    let refused = folder.task("longbench", "data = '@qa'\ntoo_long = \"refuse\"");
    let error = refused.samples(novel_tokenizer(), 500, 1, 0).unwrap_err().to_string();
    assert!(error.contains("hotpotqa ab") && error.contains("too_long"), "{error}");
}

#[test]
fn longbench_knows_its_tasks_and_their_prompts() {
    let prompts = r#"{"trec": "Types.\n{context}\nNow: {input}"}"#;
    let folder = Folder::new(&[
        ("trec", &longbench("trec", "Question: Bread?\nType: Food", "City")),
        ("mixed", &format!("{}\n{}", longbench("qasper", "x", "y"), longbench("trec", "x", "y"))),
        ("odd", &longbench("qaspar", "x", "y")),
        ("qasper", &longbench("qasper", "x", "y")),
        ("prompts", prompts),
    ]);
    let sample = first(folder.task("longbench", "data = '@trec'\nprompts = '@prompts'").as_ref(), 500);
    assert_eq!(text(&sample.prompt), "Types.\nQuestion: Bread?\nType: Food\nNow: Which one?");
    assert_eq!(sample.choices, ["Food", "City"]);
    assert!(folder.error("longbench", "data = '@trec'\ntemplate = \"chat\"").contains("plain"));
    assert!(folder.error("longbench", "data = '@mixed'").contains("record 2"));
    assert!(folder.error("longbench", "data = '@odd'").contains("did you mean `qasper`"));
    assert!(
        folder
            .error("longbench", "data = '@qasper'\nprompts = '@prompts'")
            .contains("no prompt for `qasper`")
    );
}

#[test]
fn longbench_v2_can_be_narrowed() {
    let record = |id: &str, size: &str, answer: &str| {
        serde_json::json!({"_id": id, "domain": "Code", "sub_domain": "", "difficulty": "easy", "length": size,
            "question": "Which?", "choice_A": "a", "choice_B": "b", "choice_C": "c", "choice_D": "d",
            "answer": answer, "context": "text"})
    };
    let file = serde_json::json!([record("1", "short", "C"), record("2", "long", "A")]).to_string();
    let folder =
        Folder::new(&[("data", &file), ("bad", &serde_json::json!([record("1", "long", "E")]).to_string())]);
    let sample = first(folder.task("longbench_v2", "data = '@data'\nsize = \"long\"").as_ref(), 500);
    assert_eq!(sample.references, ["A"]);
    assert!(question(&sample).contains("(C) c\n(D) d"));
    assert!(
        folder.error("longbench_v2", "data = '@data'\nsize = \"huge\"").contains("the file has: long, short")
    );
    assert!(folder.error("longbench_v2", "data = '@bad'").contains("`E`"));
}

#[test]
fn infinitebench_gives_choices_their_letters() {
    let choice = r#"{"id": 3, "context": "A book.", "input": "Who?", "answer": ["Eve"], "options": ["Ann", "Eve", "Kim", "Lee"]}"#;
    let number = r#"{"id": 4, "context": "1 5 2", "input": "Largest?", "answer": 5, "options": []}"#;
    let folder = Folder::new(&[
        ("choice", choice),
        ("number", number),
        ("bad", &choice.replace("[\"Eve\"]", "[\"Joe\"]")),
    ]);
    let task = folder.task("infinitebench", "data = '@choice'\ntask = \"longbook_choice_eng\"");
    let sample = first(task.as_ref(), 500);
    assert_eq!(
        (sample.references.as_slice(), task.chance()),
        (&["Eve".to_owned(), "B".to_owned()][..], 0.25)
    );
    assert!(question(&sample).contains("B. Eve\nC. Kim"));
    let task = folder.task("infinitebench", "data = '@number'\ntask = \"math_find\"\nmax_new_tokens = 8");
    assert_eq!(first(task.as_ref(), 500).references, ["5"]);
    assert!(folder.error("infinitebench", "data = '@number'").contains("longbook_qa_chn"));
    assert!(folder.error("infinitebench", "data = '@number'\ntask = \"mathfind\"").contains("`math_find`"));
    let error = folder.error("infinitebench", "data = '@bad'\ntask = \"longbook_choice_eng\"");
    assert!(error.contains("`Joe` is none of"), "{error}");
}

#[test]
fn lines_pairs_and_imports_are_read() {
    let lines = r#"{"random_idx": ["old-cat", 1], "expected_number": 41, "num_lines": 1, "prompt": "Record:\n\nline old-cat: <41>\n\nWhat is in line old-cat? "}"#;
    let pairs =
        r#"{"ordered_kv_records": [["k1", "v1"], ["k2", "v2"], ["k3", "v3"]], "key": "k3", "value": "v3"}"#;
    let ruler = r#"{"index": 7, "input": "Text with 12 and 34.\nWhich? They are", "outputs": ["12", "34"], "length": 9}"#;
    let folder = Folder::new(&[
        ("lines", lines),
        ("pairs", pairs),
        ("ruler", ruler),
        ("bad", &pairs.replace("v3\"}", "v4\"}")),
    ]);
    let sample = first(folder.task("longeval_lines", "data = '@lines'").as_ref(), 300);
    assert!(question(&sample).ends_with("What is in line old-cat?"));
    let sample = first(folder.task("kv_retrieval", "data = '@pairs'\nposition = 1").as_ref(), 400);
    let prompt = text(&sample.prompt);
    assert!(
        prompt.contains("{\"k1\": \"v1\",\n \"k3\": \"v3\",\n \"k2\": \"v2\"}")
            && prompt.contains("key \"k3\""),
        "{prompt}"
    );
    assert!(folder.error("kv_retrieval", "data = '@pairs'\nposition = 3").contains("at most 2"));
    assert!(folder.error("kv_retrieval", "data = '@bad'").contains("record 1"));
    let task = folder.task("ruler_upstream", "data = '@ruler'\ntask = \"niah_multivalue\"");
    let sample = first(task.as_ref(), 300);
    assert_eq!(question(&sample), ".\nWhich? They are");
    assert_eq!(task.score(&sample, &[], "only 34"), 0.5);
    assert_eq!(
        folder.task("ruler_upstream", "data = '@ruler'\ntask = \"qa_1\"").score(&sample, &[], "only 34"),
        1.0
    );
    assert!(folder.error("ruler_upstream", "data = '@ruler'").contains("niah_multikey_3"));
}

#[test]
fn nq_open_puts_the_gold_passage_among_others() {
    let record = |i: usize| {
        serde_json::json!({"question": format!("question {i}"), "answers": [format!("Answer {i}x")],
            "ctxs": [{"title": format!("T{i}"), "text": format!("It says answer {i}X here."), "hasanswer": true, "isgold": true}]})
        .to_string()
    };
    let records: Vec<String> = (0..12).map(record).collect();
    let folder = Folder::new(&[("oracle", &records.join("\n"))]);
    let task = folder.task("nq_open", "data = '@oracle'\ndocuments = 5\nposition = 2");
    let sample = first(task.as_ref(), 600);
    let prompt = text(&sample.prompt);
    assert!(
        prompt.contains("[3] T0: It says answer 0X here.")
            && prompt.contains("[5] ")
            && !prompt.contains("[6]")
    );
    assert_eq!(prompt.matches("answer 0X").count(), 1);
    let places: HashSet<usize> = folder
        .task("nq_open", "data = '@oracle'\ndocuments = 5")
        .samples(novel_tokenizer(), 600, 12, 1)
        .unwrap()
        .iter()
        .map(|s| text(&s.prompt).find(&format!(" T{}:", s.index)).unwrap() / 40)
        .collect();
    assert!(places.len() > 2, "{places:?}");
    for (toml, limit) in [("documents = 13", "1 to 12"), ("documents = 4\nposition = 4", "at most 3")] {
        let error = folder.error("nq_open", &format!("data = '@oracle'\n{toml}"));
        assert!(error.contains(limit), "{error}");
    }
}

#[test]
fn more_samples_than_records_are_refused() {
    let folder = Folder::new(&[("test", GSM8K_TEST)]);
    let task = folder.task("gsm8k", "data = '@test'\nshots = 0");
    let error = task.samples(novel_tokenizer(), 900, 2, 0).unwrap_err().to_string();
    assert!(error.contains("task.samples") && error.contains("at most 1"), "{error}");
    let error = task.samples(novel_tokenizer(), 100, 1, 0).unwrap_err().to_string();
    assert!(error.contains("gsm8k 1") && error.contains("at least"), "{error}");
}

#[test]
fn every_data_set_names_its_file_and_checks_its_hash() {
    let folder = Folder::new(&[("x", "{}")]);
    for entry in TASKS.iter().filter(|entry| entry.kind == TaskKind::Dataset) {
        let task = match entry.name {
            "ruler_upstream" => "task = \"vt\"\n",
            "infinitebench" => "task = \"passkey\"\n",
            _ => "",
        };
        let error = folder.error(entry.name, task);
        assert!(error.contains("https://") && error.contains(&format!("{}.data", entry.name)), "{error}");
        let error = folder.error(entry.name, &format!("{task}data = '@x'\nsha256 = \"00\""));
        assert!(error.contains(&format!("{}.sha256", entry.name)), "{error}");
        assert!(folder.error(entry.name, &format!("{task}data = '@none'")).contains("can't be read"));
    }
}
