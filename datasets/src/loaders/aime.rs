//! AIME: problems as JSON Lines with `problem` and `expected_answer` (or `answer`).

use super::{About, Dataset, Item, Records, Room, bad_record, jsonl, only_common, settings};
use crate::{
    files::{DataFile, Origin},
    prompt::{Parts, TooLong},
    scorers::Scorer,
    task::Task,
};
use oasis_core::{
    Result,
    registry::{Param, Params},
};
use serde::Deserialize;
use serde_json::Value;

pub(crate) const NAME: &str = "aime";
pub(crate) const VERSION: u32 = 1;
pub(crate) const PARAMS: &[Param] = &settings::COMMON;

const ORIGIN: Origin = Origin {
    what: "AIME problems (one JSON object a line: `id`, `problem`, `expected_answer`; 30 a year)",
    url: "https://huggingface.co/datasets/HuggingFaceH4/aime_2024 or https://github.com/NVIDIA-NeMo/Skills (nemo_skills/dataset/aime24)",
    sha256: None,
};

#[derive(Debug, Deserialize)]
struct Record {
    #[serde(default)]
    id: Value,
    problem: String,
    #[serde(alias = "answer")]
    expected_answer: Value,
}

struct Problems(Vec<(String, String, String)>);

/// Builds the task: reads its file.
pub(crate) fn build(params: &Params) -> Result<Box<dyn Task>> {
    let common = only_common(NAME, params)?;
    let (records, file) = jsonl(NAME, &common, &ORIGIN)?;
    let problems: Vec<_> =
        records.into_iter().enumerate().map(|(i, r)| problem(&file, i, r)).collect::<Result<_>>()?;
    let about = About {
        name: NAME,
        version: VERSION,
        scorer: Scorer::BoxedInteger,
        chance: 0.001,
        room: Room::Rest,
        too_long: TooLong::Refuse,
    };
    Dataset::boxed(about, common, vec![file], Problems(problems))
}

fn problem(file: &DataFile, index: usize, record: Record) -> Result<(String, String, String)> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let answer = text(&record.expected_answer);
    let number: u32 = answer.trim().parse().ok().filter(|n| *n < 1000).ok_or_else(|| {
        bad_record(file, index, format!("its answer `{answer}` is no integer from 0 to 999"))
    })?;
    let id = if record.id.is_null() { (index + 1).to_string() } else { text(&record.id) };
    Ok((id, record.problem.trim().to_owned(), number.to_string()))
}

impl Records for Problems {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn item(&self, index: usize, _: u64) -> Result<Item> {
        let (id, problem, answer) = &self.0[index];
        let instruction = "Solve this problem step by step. Its answer is an integer from 0 to 999; write it at the end as \
                           \\boxed{ANSWER}.";
        Ok(Item {
            id: format!("{NAME} {id}"),
            parts: Parts {
                context: instruction.to_owned(),
                question: format!("\n\nProblem: {problem}"),
                lead: "\n\nSolution:".to_owned(),
            },
            references: vec![answer.clone()],
            choices: Vec::new(),
            answer: format!(" \\boxed{{{answer}}}"),
        })
    }
}
