//! LongBench v1: a file of one of its 21 tasks.

use super::{About, Dataset, Item, Records, Room, bad_record, jsonl, longbench_prompts::LONGBENCH, settings};
use crate::{
    files::{self, Origin},
    prompt::{Parts, Template, TooLong},
    scorers::Scorer,
    task::Task,
};
use oasis_core::{
    Error, Result,
    registry::{Param, Params},
};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

pub(crate) const NAME: &str = "longbench";
pub(crate) const VERSION: u32 = 1;
pub(crate) const PARAMS: &[Param] = &settings::with::<1, 6>([Param {
    name: "prompts",
    about: "path of LongBench's dataset2prompt.json, to use its wording",
    default: "our own wording",
}]);

const ORIGIN: Origin = Origin {
    what: "a file of LongBench (hotpotqa.jsonl and others, unpacked from data.zip)",
    url: "https://huggingface.co/datasets/THUDM/LongBench",
    sha256: None,
};
const PROMPTS: Origin = Origin {
    what: "LongBench's dataset2prompt.json",
    url: "https://github.com/THUDM/LongBench (LongBench/config)",
    sha256: None,
};

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    prompts: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Record {
    input: String,
    context: String,
    answers: Vec<String>,
    dataset: String,
    all_classes: Option<Vec<String>>,
    #[serde(rename = "_id")]
    id: String,
}

/// A prompt in two halves: before and behind the context.
struct Wording {
    before: String,
    behind: String,
}

struct Texts {
    records: Vec<Record>,
    wording: Wording,
}

/// Builds the task: reads its files.
pub(crate) fn build(params: &Params) -> Result<Box<dyn Task>> {
    let (common, Options { prompts }) = settings::parse(NAME, params, PARAMS)?;
    let (records, file) = jsonl::<Record>(NAME, &common, &ORIGIN)?;
    let name = &records[0].dataset;
    if let Some(i) = records.iter().position(|r| r.dataset != *name || r.answers.is_empty()) {
        let what = format!("its task is not `{name}`, as that of record 1, or it has no answer");
        return Err(bad_record(&file, i, what));
    }
    let task = LONGBENCH
        .iter()
        .find(|task| task.name == name)
        .ok_or_else(|| Error::unknown_name("LongBench task", name, LONGBENCH.iter().map(|task| task.name)))?;
    if task.few_shot && common.template == Template::Chat {
        let what = format!(
            "`{name}` is given by examples, which LongBench puts into no chat template; use \"plain\""
        );
        return Err(Error::setting(format!("{NAME}.template"), what));
    }
    let mut read = vec![file];
    let mut prompt = task.prompt.to_owned();
    if let Some(path) = prompts {
        let (text, file) = files::read((NAME, "prompts"), Some(&path), &PROMPTS, None)?;
        let mut given: BTreeMap<String, String> = files::json(&path, &text)?;
        prompt = given.remove(name).ok_or_else(|| {
            Error::format(&path, format!("has no prompt for `{name}`; give LongBench's own file"))
        })?;
        read.push(file);
    }
    let wording = wording(&prompt).ok_or_else(|| {
        Error::setting(
            format!("{NAME}.prompts"),
            format!("the prompt of `{name}` has no {{context}}; give one with it"),
        )
    })?;
    let about = About {
        name: NAME,
        version: VERSION,
        scorer: Scorer::LongBench(task.metric),
        chance: 0.0,
        room: Room::Tokens(task.answer),
        too_long: TooLong::Middle,
    };
    Dataset::boxed(about, common, read, Texts { records, wording })
}

fn wording(prompt: &str) -> Option<Wording> {
    let (before, behind) = prompt.split_once("{context}")?;
    Some(Wording { before: before.to_owned(), behind: behind.to_owned() })
}

impl Records for Texts {
    fn len(&self) -> usize {
        self.records.len()
    }

    fn item(&self, index: usize, _: u64) -> Result<Item> {
        let Record { input, context, answers, dataset, all_classes, id } = &self.records[index];
        Ok(Item {
            id: format!("{dataset} {id}"),
            parts: Parts {
                context: format!("{}{context}", self.wording.before),
                question: self.wording.behind.replace("{input}", input),
                lead: String::new(),
            },
            references: answers.clone(),
            choices: all_classes.clone().unwrap_or_default(),
            answer: format!(" {}", answers[0]),
        })
    }
}
