//! LongEval lines: the prompts of the published test cases, as they are.

use super::{About, Dataset, Item, Records, Room, jsonl, only_common, settings};
use crate::{
    files::Origin,
    prompt::{Parts, TooLong},
    scorers::Scorer,
    task::Task,
};
use oasis_core::{
    Result,
    registry::{Param, Params},
};
use serde::Deserialize;

pub(crate) const NAME: &str = "longeval_lines";
pub(crate) const VERSION: u32 = 1;
pub(crate) const PARAMS: &[Param] = &settings::COMMON;

const ORIGIN: Origin = Origin {
    what: "a file of LongEval's line retrieval (200_lines.jsonl to 680_lines.jsonl)",
    url: "https://github.com/DachengLi1/LongChat (longeval/evaluation/lines/testcases)",
    sha256: None,
};

#[derive(Debug, Deserialize)]
struct Record {
    /// The line's name, and its number from the top.
    random_idx: (String, usize),
    expected_number: u64,
    prompt: String,
}

struct Cases(Vec<Record>);

/// Builds the task: reads its file.
pub(crate) fn build(params: &Params) -> Result<Box<dyn Task>> {
    let common = only_common(NAME, params)?;
    let (records, file) = jsonl(NAME, &common, &ORIGIN)?;
    let about = About {
        name: NAME,
        version: VERSION,
        scorer: Scorer::LastInteger,
        chance: 0.0,
        room: Room::Tokens(32),
        too_long: TooLong::Refuse,
    };
    Dataset::boxed(about, common, vec![file], Cases(records))
}

impl Records for Cases {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn item(&self, index: usize, _: u64) -> Result<Item> {
        let Record { random_idx: (name, _), expected_number, prompt } = &self.0[index];
        let prompt = prompt.trim_end();
        // The question is the paragraph behind the record.
        let at = prompt.rfind("\n\n").unwrap_or(0);
        Ok(Item {
            id: format!("{NAME} {} ({name})", index + 1),
            parts: Parts {
                context: prompt[..at].to_owned(),
                question: prompt[at..].to_owned(),
                lead: String::new(),
            },
            references: vec![expected_number.to_string()],
            choices: Vec::new(),
            answer: format!(" The <REGISTER_CONTENT> in line {name} is <{expected_number}>."),
        })
    }
}
