//! InfiniteBench: a file of one of its twelve tasks.

use super::{About, Dataset, Item, LETTERS, Records, Room, bad_record, jsonl, settings};
use crate::{
    files::{DataFile, Origin},
    prompt::{Parts, TooLong},
    scorers::{Scorer, infinitebench::InfiniteBenchMetric as Metric},
    task::Task,
};
use oasis_core::{
    Error, Result,
    registry::{Param, Params},
};
use serde::Deserialize;
use serde_json::Value;

pub(crate) const NAME: &str = "infinitebench";
pub(crate) const VERSION: u32 = 1;
pub(crate) const PARAMS: &[Param] = &settings::with::<1, 6>([Param {
    name: "task",
    about: "InfiniteBench's name of the task that the file holds (`passkey`, `longbook_qa_eng`, …)",
    default: "none; it must be given",
}]);

const ORIGIN: Origin = Origin {
    what: "a file of InfiniteBench (passkey.jsonl, longbook_qa_eng.jsonl and others)",
    url: "https://huggingface.co/datasets/xinrongzhang2022/InfiniteBench",
    sha256: None,
};

/// One of the twelve.
struct Spec {
    name: &'static str,
    metric: Metric,
    /// Tokens of the answer as published.
    answer: usize,
    /// Before the context.
    intro: &'static str,
    /// Behind it, with `{input}` and `{options}`.
    question: &'static str,
    chance: f64,
}

const fn spec(
    (name, metric, answer): (&'static str, Metric, usize),
    intro: &'static str,
    question: &'static str,
) -> Spec {
    let chance = match metric {
        Metric::Choice | Metric::CodeDebug => 0.25,
        _ => 0.0,
    };
    Spec { name, metric, answer, intro, question, chance }
}

const BOOK: &str = "Read this book, about which you will be asked.\n\n";

static SPECS: [Spec; 12] = [
    spec(
        ("passkey", Metric::FirstDigits, 6),
        "A pass key is hidden in much text that does not matter. Find it.\n\n",
        "\n\n{input}\n\nThe pass key is",
    ),
    spec(
        ("number_string", Metric::FirstDigits, 12),
        "A sequence of digits is hidden in much text that does not matter. Find it; some digits repeat.\n\n",
        "\n\n{input}\n\nThe sequence of digits is",
    ),
    spec(
        ("kv_retrieval", Metric::OneOfWords, 50),
        "Look up a key in this JSON object.\n\n",
        "\n\n{input}\n\nThe value is",
    ),
    spec(("longbook_sum_eng", Metric::RougeLsum, 1200), BOOK, "\n\nSummarise the book.\n\nSummary:"),
    spec(
        ("longbook_choice_eng", Metric::Choice, 40),
        BOOK,
        "\n\nQuestion: {input}\n\n{options}\n\nAnswer with the letter of the right option only.\nAnswer:",
    ),
    spec(
        ("longbook_qa_eng", Metric::QaF1, 40),
        BOOK,
        "\n\nQuestion: {input}\n\nAnswer in as few words as you can.\nAnswer:",
    ),
    spec(
        ("longbook_qa_chn", Metric::CharacterF1, 40),
        "请阅读下面的书，然后回答问题。\n\n",
        "\n\n问题：{input}\n请尽量简短地回答。\n答案：",
    ),
    spec(
        ("longdialogue_qa_eng", Metric::OneOfUpperWords, 40),
        "In this script one name is replaced by \"$$MASK$$\". Find out whose it is.\n\n",
        "\n\nThe name behind \"$$MASK$$\" is",
    ),
    spec(("math_find", Metric::FirstNumber, 3), "", "\n\n{input}\n\nAnswer with the number only:"),
    spec(
        ("math_calc", Metric::NumbersInOrder, 30_000),
        "Work out this sum step by step, and give the value after every operation, separated by commas.\n\n",
        "\n\n{input}\n\nValues:",
    ),
    spec(
        ("code_run", Metric::LastInteger, 5),
        "Follow what this code does.\n\n",
        "\n\n{input}\n\nThe value is",
    ),
    spec(
        ("code_debug", Metric::CodeDebug, 5),
        "One function of this code has an error. Find it.\n\n",
        "\n\n{input}\n\n{options}\n\nAnswer with the letter of the function only.\nAnswer:",
    ),
];

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    task: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Record {
    id: Value,
    context: String,
    input: String,
    answer: Value,
    #[serde(default)]
    options: Vec<String>,
}

struct Texts {
    spec: &'static Spec,
    records: Vec<Record>,
    /// References of each record.
    gold: Vec<Vec<String>>,
}

/// Builds the task: reads its file.
pub(crate) fn build(params: &Params) -> Result<Box<dyn Task>> {
    let (common, options) = settings::parse::<Options>(NAME, params, PARAMS)?;
    let names = SPECS.iter().map(|spec| spec.name);
    let Some(task) = options.task else {
        let what = format!("not given; it is one of {}", names.collect::<Vec<_>>().join(", "));
        return Err(Error::setting(format!("{NAME}.task"), what));
    };
    let spec = SPECS
        .iter()
        .find(|spec| spec.name == task)
        .ok_or_else(|| Error::unknown_name("InfiniteBench task", &task, names))?;
    let (records, file) = jsonl::<Record>(NAME, &common, &ORIGIN)?;
    let gold = records.iter().enumerate().map(|(i, r)| gold(spec, &file, i, r)).collect::<Result<_>>()?;
    let about = About {
        name: NAME,
        version: VERSION,
        scorer: Scorer::InfiniteBench(spec.metric),
        chance: spec.chance,
        room: Room::Tokens(spec.answer),
        too_long: TooLong::Middle,
    };
    Dataset::boxed(about, common, vec![file], Texts { spec, records, gold })
}

/// The references of a record: its answers as text, and for a choice the option's letter too.
fn gold(spec: &Spec, file: &DataFile, index: usize, record: &Record) -> Result<Vec<String>> {
    let mut gold = texts(&record.answer);
    let Some(first) = gold.first() else { return Err(bad_record(file, index, "it has no `answer`")) };
    if matches!(spec.metric, Metric::Choice | Metric::CodeDebug) {
        let at = record.options.iter().position(|option| option == first);
        let letter = at.and_then(|i| LETTERS.get(i)).ok_or_else(|| {
            bad_record(
                file,
                index,
                format!("its answer `{first}` is none of its first {} options", LETTERS.len()),
            )
        })?;
        gold.truncate(1);
        gold.push((*letter).to_owned());
    }
    Ok(gold)
}

/// An answer or a list of answers as texts.
pub(crate) fn texts(answer: &Value) -> Vec<String> {
    match answer {
        Value::Array(list) => list.iter().flat_map(texts).collect(),
        Value::String(text) => vec![text.clone()],
        Value::Null => Vec::new(),
        other => vec![other.to_string()],
    }
}

impl Records for Texts {
    fn len(&self) -> usize {
        self.records.len()
    }

    fn item(&self, index: usize, _: u64) -> Result<Item> {
        let (spec, record, gold) = (self.spec, &self.records[index], &self.gold[index]);
        let lines = LETTERS.iter().zip(&record.options).map(|(letter, option)| format!("{letter}. {option}"));
        let options = lines.collect::<Vec<_>>().join("\n");
        let question = spec.question.replace("{options}", &options).replace("{input}", record.input.trim());
        let answer = match spec.metric {
            Metric::Choice | Metric::CodeDebug => gold[1].clone(),
            Metric::NumbersInOrder => gold.join(", "),
            _ => gold[0].clone(),
        };
        Ok(Item {
            id: format!("{} {}", spec.name, record.id),
            parts: Parts {
                context: format!("{}{}", spec.intro, record.context.trim()),
                question,
                lead: String::new(),
            },
            references: gold.clone(),
            choices: record.options.clone(),
            answer: format!(" {answer}"),
        })
    }
}
