//! Files that RULER's own generator wrote: the prompts as they are, scored as RULER scores them.

use super::{About, Dataset, Item, Records, Room, bad_record, jsonl, settings};
use crate::{
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

pub(crate) const NAME: &str = "ruler_upstream";
pub(crate) const VERSION: u32 = 1;
pub(crate) const PARAMS: &[Param] = &settings::with::<1, 6>([Param {
    name: "task",
    about: "RULER's name of the task that the file holds, which says how it is scored",
    default: "none; it must be given",
}]);

const ORIGIN: Origin = Origin {
    what: "a validation.jsonl that RULER wrote for your tokenizer and length",
    url: "https://github.com/NVIDIA/RULER (scripts/data/prepare.py)",
    sha256: None,
};

/// RULER's tasks with the tokens of their answers.
const TASKS: [(&str, usize); 13] = [
    ("niah_single_1", 128),
    ("niah_single_2", 128),
    ("niah_single_3", 128),
    ("niah_multikey_1", 128),
    ("niah_multikey_2", 128),
    ("niah_multikey_3", 128),
    ("niah_multivalue", 128),
    ("niah_multiquery", 128),
    ("vt", 30),
    ("cwe", 120),
    ("fwe", 50),
    ("qa_1", 32),
    ("qa_2", 32),
];

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    task: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Record {
    index: i64,
    input: String,
    outputs: Vec<String>,
    #[serde(default)]
    answer_prefix: String,
}

struct Prompts(Vec<Record>);

/// Builds the task: reads its file.
pub(crate) fn build(params: &Params) -> Result<Box<dyn Task>> {
    let (common, options) = settings::parse::<Options>(NAME, params, PARAMS)?;
    let names = TASKS.iter().map(|(name, _)| *name);
    let Some(task) = options.task else {
        let what = format!("not given; it is one of {}", names.collect::<Vec<_>>().join(", "));
        return Err(Error::setting(format!("{NAME}.task"), what));
    };
    let (_, answer) = TASKS
        .iter()
        .find(|(name, _)| *name == task)
        .ok_or_else(|| Error::unknown_name("RULER task", &task, names))?;
    let (records, file) = jsonl::<Record>(NAME, &common, &ORIGIN)?;
    if let Some(bad) = records.iter().position(|r| r.outputs.is_empty()) {
        return Err(bad_record(&file, bad, "it has no `outputs`"));
    }
    let scorer = if task.starts_with("qa") { Scorer::AnyReference } else { Scorer::EveryReference };
    let about = About {
        name: NAME,
        version: VERSION,
        scorer,
        chance: 0.0,
        room: Room::Tokens(*answer),
        too_long: TooLong::Refuse,
    };
    Dataset::boxed(about, common, vec![file], Prompts(records))
}

impl Records for Prompts {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn item(&self, index: usize, _: u64) -> Result<Item> {
        let Record { index: own, input, outputs, answer_prefix } = &self.0[index];
        // The question is the last line of the prompt.
        let at = input.trim_end().rfind('\n').unwrap_or(0);
        Ok(Item {
            id: format!("{NAME} index {own}"),
            parts: Parts {
                context: input[..at].to_owned(),
                question: input[at..].to_owned(),
                lead: answer_prefix.clone(),
            },
            references: outputs.clone(),
            choices: Vec::new(),
            answer: format!(" {}", outputs.join(", ")),
        })
    }
}
