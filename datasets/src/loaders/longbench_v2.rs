//! LongBench v2: one JSON array of questions with four choices.

use super::{About, Dataset, Item, LETTERS, Records, Room, bad_record, choices_text, settings};
use crate::{
    files::{self, Origin},
    prompt::{Parts, TooLong},
    scorers::Scorer,
    task::Task,
};
use oasis_core::{
    Error, Result,
    registry::{Param, Params},
};
use serde::Deserialize;

pub(crate) const NAME: &str = "longbench_v2";
pub(crate) const VERSION: u32 = 1;
pub(crate) const PARAMS: &[Param] = &settings::with::<3, 8>([
    Param { name: "difficulty", about: "only records of this difficulty: `easy` or `hard`", default: "all" },
    Param { name: "size", about: "only records of this length: `short`, `medium` or `long`", default: "all" },
    Param { name: "domain", about: "only records of this domain, as the file writes it", default: "all" },
]);

const ORIGIN: Origin = Origin {
    what: "LongBench v2's data.json (503 records)",
    url: "https://huggingface.co/datasets/THUDM/LongBench-v2",
    sha256: None,
};

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    difficulty: Option<String>,
    size: Option<String>,
    domain: Option<String>,
}

#[derive(Debug, Deserialize)]
#[allow(non_snake_case, reason = "the file's names")]
struct Record {
    #[serde(rename = "_id")]
    id: String,
    domain: String,
    difficulty: String,
    length: String,
    question: String,
    choice_A: String,
    choice_B: String,
    choice_C: String,
    choice_D: String,
    answer: String,
    context: String,
}

struct Questions(Vec<Record>);

/// Builds the task: reads its file and chooses records.
pub(crate) fn build(params: &Params) -> Result<Box<dyn Task>> {
    let (common, options) = settings::parse::<Options>(NAME, params, PARAMS)?;
    let (text, file) = common.read(NAME, &ORIGIN)?;
    let mut records: Vec<Record> = files::json(&file.path, &text)?;
    if let Some((i, bad)) = records.iter().enumerate().find(|(_, r)| !LETTERS.contains(&r.answer.as_str())) {
        return Err(bad_record(&file, i, format!("its answer `{}` is none of A, B, C and D", bad.answer)));
    }
    only(&mut records, "difficulty", options.difficulty, |r| &r.difficulty)?;
    only(&mut records, "size", options.size, |r| &r.length)?;
    only(&mut records, "domain", options.domain, |r| &r.domain)?;
    let about = About {
        name: NAME,
        version: VERSION,
        scorer: Scorer::StatedLetter,
        chance: 0.25,
        room: Room::Tokens(128),
        too_long: TooLong::Middle,
    };
    Dataset::boxed(about, common, vec![file], Questions(records))
}

/// Keeps the records whose `field` is `wanted`.
fn only(
    records: &mut Vec<Record>,
    key: &str,
    wanted: Option<String>,
    field: fn(&Record) -> &String,
) -> Result<()> {
    let Some(wanted) = wanted else { return Ok(()) };
    let mut there: Vec<String> = records.iter().map(|r| field(r).clone()).collect();
    there.sort_unstable();
    there.dedup();
    records.retain(|r| *field(r) == wanted);
    if records.is_empty() {
        let what = format!("no record has `{wanted}`; the file has: {}", there.join(", "));
        return Err(Error::setting(format!("{NAME}.{key}"), what));
    }
    Ok(())
}

impl Records for Questions {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn item(&self, index: usize, _: u64) -> Result<Item> {
        let r = &self.0[index];
        let choices = [&r.choice_A, &r.choice_B, &r.choice_C, &r.choice_D].map(|c| c.trim().to_owned());
        let end =
            "Answer with one sentence of the form \"The correct answer is (X)\", where X is A, B, C or D.";
        Ok(Item {
            id: format!("{NAME} {}", r.id),
            parts: Parts {
                context: format!(
                    "Read the text, then choose the right answer to the question.\n\n{}",
                    r.context.trim()
                ),
                question: format!(
                    "\n\nQuestion: {}\n\n{}\n\n{end}",
                    r.question.trim(),
                    choices_text(&choices)
                ),
                lead: "\n".to_owned(),
            },
            references: vec![r.answer.clone()],
            choices: choices.to_vec(),
            answer: format!("The correct answer is ({}).", r.answer),
        })
    }
}
