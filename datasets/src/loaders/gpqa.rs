//! GPQA-Diamond: four choices in an order drawn for each record.

use super::{About, Dataset, Item, LETTERS, Records, Room, bad_record, choices_text, only_common, settings};
use crate::{
    draw::Draw,
    files::Origin,
    prompt::{Parts, TooLong},
    scorers::Scorer,
    task::Task,
};
use oasis_core::{
    Error, Result,
    registry::{Param, Params},
};
use serde::Deserialize;

pub(crate) const NAME: &str = "gpqa";
pub(crate) const VERSION: u32 = 1;
pub(crate) const PARAMS: &[Param] = &settings::COMMON;

const ORIGIN: Origin = Origin {
    what: "gpqa_diamond.csv (198 rows; its authors ask not to publish the questions)",
    url: "https://github.com/idavidrein/gpqa (dataset.zip)",
    sha256: None,
};

#[derive(Debug, Deserialize)]
struct Record {
    #[serde(rename = "Question")]
    question: String,
    #[serde(rename = "Correct Answer")]
    correct: String,
    #[serde(rename = "Incorrect Answer 1")]
    wrong_1: String,
    #[serde(rename = "Incorrect Answer 2")]
    wrong_2: String,
    #[serde(rename = "Incorrect Answer 3")]
    wrong_3: String,
    #[serde(rename = "Record ID", default)]
    id: String,
}

struct Questions(Vec<Record>);

/// Builds the task: reads its file.
pub(crate) fn build(params: &Params) -> Result<Box<dyn Task>> {
    let common = only_common(NAME, params)?;
    let (text, file) = common.read(NAME, &ORIGIN)?;
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let records: Vec<Record> = reader
        .deserialize()
        .enumerate()
        .map(|(i, record)| record.map_err(|e| bad_record(&file, i, e)))
        .collect::<Result<_>>()?;
    if records.is_empty() {
        return Err(Error::format(&file.path, "holds no record; give the CSV file as published"));
    }
    let about = About {
        name: NAME,
        version: VERSION,
        scorer: Scorer::Letter,
        chance: 0.25,
        room: Room::Rest,
        too_long: TooLong::Refuse,
    };
    Dataset::boxed(about, common, vec![file], Questions(records))
}

impl Records for Questions {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn item(&self, index: usize, seed: u64) -> Result<Item> {
        let record = &self.0[index];
        let all = [&record.correct, &record.wrong_1, &record.wrong_2, &record.wrong_3].map(|c| c.trim());
        let order = Draw::new(seed).distinct(4, 4);
        let choices: Vec<&str> = order.iter().map(|&i| all[i as usize]).collect();
        let right = LETTERS[order.iter().position(|&i| i == 0).unwrap_or(0)];
        let id = if record.id.is_empty() { (index + 1).to_string() } else { record.id.clone() };
        let instruction = "Choose the right answer to the question. Reason step by step, then end with the sentence \
                           \"The correct answer is (X)\", where X is one of the letters A, B, C and D.";
        Ok(Item {
            id: format!("{NAME} {id}"),
            parts: Parts {
                context: instruction.to_owned(),
                question: format!("\n\nQuestion: {}\n\n{}", record.question.trim(), choices_text(&choices)),
                lead: "\n\nReasoning:".to_owned(),
            },
            references: vec![right.to_owned()],
            choices: choices.into_iter().map(str::to_owned).collect(),
            answer: format!(" The correct answer is ({right})."),
        })
    }
}
