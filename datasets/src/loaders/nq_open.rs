//! NQ-open on many passages, one of which has the answer (Liu et al. 2023).
//!
//! A file with many passages a record is taken as it is. From the *oracle* file, whose records have the gold passage
//! only, passages of other records are added; none of them contains an answer.

use super::{About, Dataset, Item, Records, Room, bad_record, jsonl, settings};
use crate::{
    draw::Draw,
    files::Origin,
    prompt::{Parts, TooLong},
    scorers::{Scorer, text::normalise},
    task::Task,
};
use oasis_core::{
    Error, Result,
    registry::{Param, Params},
};
use serde::Deserialize;

pub(crate) const NAME: &str = "nq_open";
pub(crate) const VERSION: u32 = 1;
pub(crate) const PARAMS: &[Param] = &settings::with::<2, 7>([
    Param { name: "documents", about: "passages of each prompt, for records that have one", default: "20" },
    Param {
        name: "position",
        about: "place of the passage with the answer, from 0",
        default: "drawn for each record",
    },
]);

const ORIGIN: Origin = Origin {
    what: "a file of NQ-open (nq-open-oracle.jsonl, or one with 10, 20 or 30 documents, unpacked)",
    url: "https://github.com/nelson-liu/lost-in-the-middle (qa_data)",
    sha256: None,
};

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    documents: usize,
    position: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self { documents: 20, position: None }
    }
}

#[derive(Debug, Deserialize)]
struct Record {
    question: String,
    answers: Vec<String>,
    ctxs: Vec<Passage>,
}

#[derive(Debug, Clone, Deserialize)]
struct Passage {
    title: String,
    text: String,
}

struct Questions {
    records: Vec<Record>,
    /// First passage of each record, normalised.
    plain: Vec<String>,
    documents: usize,
    position: Option<usize>,
}

/// Builds the task: reads its file.
pub(crate) fn build(params: &Params) -> Result<Box<dyn Task>> {
    let (common, Options { documents, position }) = settings::parse(NAME, params, PARAMS)?;
    let (records, file) = jsonl::<Record>(NAME, &common, &ORIGIN)?;
    let (n, key) = (records.len(), |key: &str| format!("{NAME}.{key}"));
    if documents == 0 || documents > n {
        let what = format!("{documents} passages of a file with {n} records; give 1 to {n}");
        return Err(Error::setting(key("documents"), what));
    }
    if let Some(position) = position.filter(|p| *p >= documents) {
        let what = format!("{position} of {documents} passages; give at most {}", documents - 1);
        return Err(Error::setting(key("position"), what));
    }
    if let Some(bad) = records.iter().position(|r| r.ctxs.is_empty() || r.answers.is_empty()) {
        return Err(bad_record(&file, bad, "it has no passage or no answer"));
    }
    let plain = records.iter().map(|r| normalise(&r.ctxs[0].text)).collect();
    let about = About {
        name: NAME,
        version: VERSION,
        scorer: Scorer::Subspan,
        chance: 0.0,
        room: Room::Tokens(100),
        too_long: TooLong::Refuse,
    };
    Dataset::boxed(about, common, vec![file], Questions { records, plain, documents, position })
}

impl Questions {
    /// The passages of record `index`.
    fn passages(&self, index: usize, seed: u64) -> Result<Vec<&Passage>> {
        let record = &self.records[index];
        if record.ctxs.len() > 1 {
            return Ok(record.ctxs.iter().collect());
        }
        let mut draw = Draw::new(seed);
        let drawn = draw.index(self.documents);
        let at = self.position.unwrap_or(drawn);
        let answers: Vec<String> = record.answers.iter().map(|a| normalise(a)).collect();
        let n = self.records.len();
        let foreign = |i: &usize| {
            *i != index && !answers.iter().any(|a| !a.is_empty() && self.plain[*i].contains(a.as_str()))
        };
        let others = draw.distinct(n as u32, n).into_iter().map(|i| i as usize).filter(foreign);
        let mut passages: Vec<&Passage> =
            others.map(|i| &self.records[i].ctxs[0]).take(self.documents - 1).collect();
        if passages.len() + 1 < self.documents {
            let what = format!(
                "only {} passages without an answer to record {}; give at most {}",
                passages.len(),
                index + 1,
                passages.len() + 1
            );
            return Err(Error::setting(format!("{NAME}.documents"), what));
        }
        passages.insert(at, &record.ctxs[0]);
        Ok(passages)
    }
}

impl Records for Questions {
    fn len(&self) -> usize {
        self.records.len()
    }

    fn item(&self, index: usize, seed: u64) -> Result<Item> {
        let Record { question, answers, .. } = &self.records[index];
        let passages = self.passages(index, seed)?;
        let passages: Vec<String> = passages
            .iter()
            .enumerate()
            .map(|(i, p)| format!("[{}] {}: {}", i + 1, p.title.trim(), p.text.trim()))
            .collect();
        let instruction =
            "Answer a question by these search results, of which some have nothing to do with it.";
        Ok(Item {
            id: format!("{NAME} {}", index + 1),
            parts: Parts {
                context: format!("{instruction}\n\n{}", passages.join("\n")),
                question: format!("\n\nQuestion: {}", question.trim()),
                lead: "\nAnswer:".to_owned(),
            },
            references: answers.clone(),
            choices: Vec::new(),
            answer: format!(" {}", answers[0]),
        })
    }
}
