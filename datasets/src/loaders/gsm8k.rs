//! GSM8K: a chain of thought after worked examples from the training file.

use super::{About, Dataset, Item, Records, Room, bad_record, jsonl, settings};
use crate::{
    draw::Draw,
    files::{self, DataFile, Origin},
    prompt::{Parts, TooLong},
    scorers::Scorer,
    task::Task,
};
use oasis_core::{
    Error, Result,
    registry::{Param, Params},
};
use serde::Deserialize;
use std::path::PathBuf;

pub(crate) const NAME: &str = "gsm8k";
pub(crate) const VERSION: u32 = 1;
pub(crate) const PARAMS: &[Param] = &settings::with::<2, 7>([
    Param {
        name: "train",
        about: "path of train.jsonl, which the worked examples are drawn from",
        default: "none; an error says where to get it",
    },
    Param {
        name: "shots",
        about: "worked examples before the question, the same for all samples",
        default: "8",
    },
]);

const TEST: Origin = Origin {
    what: "GSM8K's test.jsonl",
    url: "https://raw.githubusercontent.com/openai/grade-school-math/master/grade_school_math/data/test.jsonl",
    sha256: Some("3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14"),
};
const TRAIN: Origin = Origin {
    what: "GSM8K's train.jsonl",
    url: "https://raw.githubusercontent.com/openai/grade-school-math/master/grade_school_math/data/train.jsonl",
    sha256: Some("17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465"),
};

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    train: Option<PathBuf>,
    shots: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { train: None, shots: 8 }
    }
}

#[derive(Debug, Deserialize)]
struct Record {
    question: String,
    answer: String,
}

/// A problem, its solution in prose and its number.
struct Problem {
    question: String,
    solution: String,
    number: String,
}

struct Problems {
    test: Vec<Problem>,
    /// The worked examples.
    shots: String,
}

/// Builds the task: reads both files.
pub(crate) fn build(params: &Params) -> Result<Box<dyn Task>> {
    let (common, Options { train, shots }) = settings::parse(NAME, params, PARAMS)?;
    let (records, file) = jsonl(NAME, &common, &TEST)?;
    let mut problems = Problems { test: problems(&file, records)?, shots: String::new() };
    let mut read = vec![file];
    if shots > 0 {
        let (text, file) = files::read((NAME, "train"), train.as_deref(), &TRAIN, None)?;
        let train = self::problems(&file, files::jsonl(&file.path, &text)?)?;
        if shots > train.len() {
            let what = format!("{shots} worked examples, and {} has {}", file.path.display(), train.len());
            return Err(Error::setting(format!("{NAME}.shots"), what));
        }
        problems.shots = worked(&train, shots);
        read.push(file);
    }
    let about = About {
        name: NAME,
        version: VERSION,
        scorer: Scorer::LastNumber,
        chance: 0.0,
        room: Room::Tokens(512),
        too_long: TooLong::Refuse,
    };
    Dataset::boxed(about, common, read, problems)
}

/// The worked examples: a fixed draw, so that every run and every sample shows the same ones.
fn worked(train: &[Problem], shots: usize) -> String {
    let drawn = Draw::new(0).distinct(train.len() as u32, shots);
    let one = |&i: &u32| {
        let Problem { question, solution, number } = &train[i as usize];
        format!("Question: {question}\nAnswer: {solution} The answer is {number}.\n\n")
    };
    drawn.iter().map(one).collect()
}

fn problems(file: &DataFile, records: Vec<Record>) -> Result<Vec<Problem>> {
    let one = |(i, Record { question, answer }): (usize, Record)| {
        let (solution, number) = answer
            .rsplit_once("#### ")
            .ok_or_else(|| bad_record(file, i, "its answer has no line `#### NUMBER`"))?;
        let solution = without_annotations(solution.trim());
        Ok(Problem { question: question.trim().to_owned(), solution, number: number.trim().replace(',', "") })
    };
    records.into_iter().enumerate().map(one).collect()
}

/// A solution without its calculator annotations `<<1+2=3>>`, lines joined by blanks.
fn without_annotations(solution: &str) -> String {
    let mut out = String::with_capacity(solution.len());
    let mut rest = solution;
    while let Some((before, after)) = rest.split_once("<<") {
        out.push_str(before);
        rest = after.split_once(">>").map_or("", |(_, rest)| rest);
    }
    out.push_str(rest);
    out.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

impl Records for Problems {
    fn len(&self) -> usize {
        self.test.len()
    }

    fn item(&self, index: usize, _: u64) -> Result<Item> {
        let Problem { question, solution, number } = &self.test[index];
        Ok(Item {
            id: format!("{NAME} {}", index + 1),
            parts: Parts {
                context: self.shots.clone(),
                question: format!("Question: {question}"),
                lead: "\nAnswer:".to_owned(),
            },
            references: vec![number.clone()],
            choices: Vec::new(),
            answer: format!(" {solution} The answer is {number}."),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_go_and_lines_join() {
        let text = "He buys 2/2=<<2/2=1>>1 bolt\nSo 2+1=<<2+1=3>>3 bolts.";
        assert_eq!(without_annotations(text), "He buys 2/2=1 bolt So 2+1=3 bolts.");
        assert_eq!(without_annotations("open << end"), "open");
    }
}
