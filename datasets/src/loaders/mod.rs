//! Published benchmarks, read from files that the user gives.
//!
//! A loader turns a file of the published format into [`Item`]s; [`Dataset`] turns those into samples. Record `i` of the
//! file is sample `i`. Prompts have our own wording unless a loader says otherwise.

mod aime;
mod gpqa;
mod gsm8k;
mod infinitebench;
mod kv_retrieval;
mod longbench;
mod longbench_prompts;
mod longbench_v2;
mod longeval;
mod nq_open;
mod ruler_upstream;
pub(crate) mod settings;
#[cfg(test)]
mod tests;

use crate::{
    files::{self, DataFile},
    prompt::{self, Frame, Made, Parts, TooLong},
    scorers::Scorer,
    table::TaskEntry,
    task::{Sample, Scoring, Task, TaskKind, sample_seed},
};
use oasis_core::{Error, Result, registry::Params, text::Tokenizer};
use rayon::prelude::*;
use settings::Common;

/// One record as a prompt with its gold answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Item {
    /// The record's name in errors.
    pub id: String,
    pub parts: Parts,
    pub references: Vec<String>,
    pub choices: Vec<String>,
    /// The gold continuation, with white space in front.
    pub answer: String,
}

/// The records of a file.
pub(crate) trait Records: Send + Sync {
    /// How many there are.
    fn len(&self) -> usize;

    /// Record `index`; `seed` is what random choices depend on.
    fn item(&self, index: usize, seed: u64) -> Result<Item>;
}

/// Room for the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// So many tokens.
    Tokens(usize),
    /// All that the length leaves behind the prompt.
    Rest,
}

/// A data set as a task.
pub(crate) struct Dataset {
    name: &'static str,
    version: u32,
    scorer: Scorer,
    chance: f64,
    room: Room,
    common: Common,
    too_long: TooLong,
    files: Vec<DataFile>,
    sha256: Option<String>,
    records: Box<dyn Records>,
}

/// What a loader says about its task.
pub(crate) struct About {
    pub name: &'static str,
    pub version: u32,
    pub scorer: Scorer,
    pub chance: f64,
    /// Room for the answer as published.
    pub room: Room,
    /// What becomes of long prompts as published.
    pub too_long: TooLong,
}

impl Dataset {
    /// The task of records and the files that they came from.
    pub fn boxed(
        about: About,
        common: Common,
        files: Vec<DataFile>,
        records: impl Records + 'static,
    ) -> Result<Box<dyn Task>> {
        let About { name, version, scorer, chance, room, too_long } = about;
        let room = match (room, common.max_new_tokens) {
            (Room::Rest, None) => Room::Rest,
            (Room::Rest, set) => Room::Tokens(settings::answer_tokens(name, set, 1)?),
            (Room::Tokens(n), set) => Room::Tokens(settings::answer_tokens(name, set, n)?),
        };
        Ok(Box::new(Self {
            name,
            version,
            scorer,
            chance,
            room,
            too_long: common.too_long.unwrap_or(too_long),
            common,
            sha256: files::digest(&files),
            files,
            records: Box::new(records),
        }))
    }

    fn sample(
        &self,
        (tokenizer, frame): (&Tokenizer, &Frame),
        length: usize,
        (index, seed): (usize, u64),
    ) -> Result<Sample> {
        // Choices within a record are the same at every length.
        let item = self.records.item(index, sample_seed(seed, self.name, 0, index))?;
        let tokens = frame.write(&item.parts).encode(tokenizer)?;
        let least = match self.room {
            Room::Tokens(n) => n,
            Room::Rest => 1,
        };
        let tokens = tokens.fit(length.saturating_sub(least), self.too_long, &item.id, least)?;
        let made = Made {
            task: self.name,
            length,
            index,
            seed: sample_seed(seed, self.name, length, index),
            answer: tokenizer.encode(&item.answer, false)?,
            references: item.references,
            choices: item.choices,
            max_new_tokens: match self.room {
                Room::Tokens(n) => n,
                Room::Rest => length - tokens.ids.len(),
            },
        };
        Ok(prompt::sample(tokens, made))
    }
}

impl Task for Dataset {
    fn name(&self) -> &str {
        self.name
    }

    fn version(&self) -> u32 {
        self.version
    }

    fn scoring(&self) -> Scoring {
        Scoring::Text(self.scorer)
    }

    fn chance(&self) -> f64 {
        self.chance
    }

    fn data_sha256(&self) -> Option<&str> {
        self.sha256.as_deref()
    }

    fn files(&self) -> &[DataFile] {
        &self.files
    }

    fn samples(&self, tokenizer: &Tokenizer, length: usize, n: usize, seed: u64) -> Result<Vec<Sample>> {
        let records = self.records.len();
        if n > records {
            let what = format!(
                "{n} samples of `{}`, whose file has {records} records; give at most {records}",
                self.name
            );
            return Err(Error::setting("task.samples", what));
        }
        let frame = Frame::new(tokenizer, self.common.template)?;
        (0..n).into_par_iter().map(|index| self.sample((tokenizer, &frame), length, (index, seed))).collect()
    }
}

/// A row of the table for a loader's module.
macro_rules! row {
    ($module:ident, $about:literal) => {
        TaskEntry {
            name: $module::NAME,
            about: $about,
            kind: TaskKind::Dataset,
            version: $module::VERSION,
            params: $module::PARAMS,
            build: $module::build,
        }
    };
}

/// The rows of all loaders.
pub(crate) const ROWS: [TaskEntry; 10] = [
    row!(ruler_upstream, "A file of RULER's own generator, scored as RULER does (arXiv 2404.06654)."),
    row!(gsm8k, "GSM8K: school mathematics, eight worked examples, last number (arXiv 2110.14168)."),
    row!(aime, "AIME: competition problems whose answer is an integer from 0 to 999."),
    row!(gpqa, "GPQA-Diamond: graduate science, four choices in random order (arXiv 2311.12022)."),
    row!(longbench, "One of LongBench's 21 tasks, by its own metric (arXiv 2308.14508)."),
    row!(longbench_v2, "LongBench v2: four choices on long texts (arXiv 2412.15204)."),
    row!(infinitebench, "One of InfiniteBench's twelve tasks, by its own metric (arXiv 2402.13718)."),
    row!(longeval, "LongEval lines: the number that a line of a long record holds (LMSYS 2023)."),
    row!(
        kv_retrieval,
        "The value of a UUID in a JSON object of many (Lost in the Middle, arXiv 2307.03172)."
    ),
    row!(nq_open, "A Google query on one of many passages (Lost in the Middle, arXiv 2307.03172)."),
];

/// The error of a record that its loader can't use.
fn bad_record(file: &DataFile, index: usize, what: impl std::fmt::Display) -> Error {
    Error::format(&file.path, format!("record {}: {what}", index + 1))
}

/// Letters of four choices.
const LETTERS: [&str; 4] = ["A", "B", "C", "D"];

/// `(A) …` to `(D) …`, a line each.
fn choices_text(choices: &[impl std::fmt::Display]) -> String {
    let lines: Vec<String> =
        LETTERS.iter().zip(choices).map(|(letter, text)| format!("({letter}) {text}")).collect();
    lines.join("\n")
}

/// Reads the file of `common` as JSON Lines.
fn jsonl<T: serde::de::DeserializeOwned>(
    name: &str,
    common: &Common,
    origin: &files::Origin,
) -> Result<(Vec<T>, DataFile)> {
    let (text, file) = common.read(name, origin)?;
    Ok((files::jsonl(&file.path, &text)?, file))
}

/// The options of a loader without any of its own.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct NoOptions {}

/// The common settings of a loader without options of its own.
fn only_common(name: &str, params: &Params) -> Result<Common> {
    let (common, NoOptions {}) = settings::parse(name, params, &settings::COMMON)?;
    Ok(common)
}
