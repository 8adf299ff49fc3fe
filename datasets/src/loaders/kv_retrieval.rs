//! Key-value retrieval: a JSON object of UUIDs (Liu et al. 2023).

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

pub(crate) const NAME: &str = "kv_retrieval";
pub(crate) const VERSION: u32 = 1;
pub(crate) const PARAMS: &[Param] = &settings::with::<1, 6>([Param {
    name: "position",
    about: "place of the pair that is asked for, from 0",
    default: "as in the file",
}]);

const ORIGIN: Origin = Origin {
    what: "a file of key-value pairs (kv-retrieval-75_keys.jsonl, -140_ or -300_, unpacked)",
    url: "https://github.com/nelson-liu/lost-in-the-middle (kv_retrieval_data)",
    sha256: None,
};

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    position: Option<usize>,
}

#[derive(Debug, Deserialize)]
struct Record {
    ordered_kv_records: Vec<(String, String)>,
    key: String,
    value: String,
}

struct Pairs {
    records: Vec<Record>,
    position: Option<usize>,
}

/// Builds the task: reads its file.
pub(crate) fn build(params: &Params) -> Result<Box<dyn Task>> {
    let (common, Options { position }) = settings::parse(NAME, params, PARAMS)?;
    let (records, file) = jsonl::<Record>(NAME, &common, &ORIGIN)?;
    for (i, record) in records.iter().enumerate() {
        let pairs = record.ordered_kv_records.len();
        if !record.ordered_kv_records.iter().any(|(k, v)| *k == record.key && *v == record.value) {
            return Err(bad_record(&file, i, "its key and value are not among its pairs"));
        }
        if let Some(position) = position.filter(|p| *p >= pairs) {
            let what =
                format!("{position}, and record {} has {pairs} pairs; give at most {}", i + 1, pairs - 1);
            return Err(Error::setting(format!("{NAME}.position"), what));
        }
    }
    let about = About {
        name: NAME,
        version: VERSION,
        scorer: Scorer::AnyReference,
        chance: 0.0,
        room: Room::Tokens(100),
        too_long: TooLong::Refuse,
    };
    Dataset::boxed(about, common, vec![file], Pairs { records, position })
}

impl Records for Pairs {
    fn len(&self) -> usize {
        self.records.len()
    }

    fn item(&self, index: usize, _: u64) -> Result<Item> {
        let Record { ordered_kv_records, key, value } = &self.records[index];
        let mut pairs: Vec<&(String, String)> = ordered_kv_records.iter().collect();
        if let Some(to) = self.position
            && let Some(from) = pairs.iter().position(|(k, _)| k == key)
        {
            let pair = pairs.remove(from);
            pairs.insert(to, pair);
        }
        let lines: Vec<String> = pairs.iter().map(|(k, v)| format!("\"{k}\": \"{v}\"")).collect();
        Ok(Item {
            id: format!("{NAME} {}", index + 1),
            parts: Parts {
                context: format!("Look up a key in this JSON object.\n\n{{{}}}", lines.join(",\n ")),
                question: format!("\n\nWhich value does the object give the key \"{key}\"?"),
                lead: "\nValue:".to_owned(),
            },
            references: vec![value.clone()],
            choices: Vec::new(),
            answer: format!(" \"{value}\""),
        })
    }
}
