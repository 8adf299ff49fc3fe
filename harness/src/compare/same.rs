//! What must be equal in two runs, so that their samples are pairs; and what may differ, and is said.

use super::side::Side;
use crate::record::TaskRecord;
use anyhow::{Result, bail};
use oasis_core::Error;

/// Keys of a task's table that do not change what one sample is.
const SIZES: [&str; 3] = ["samples", "indices", "label"];

/// A field with its values in both runs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Difference {
    field: String,
    a: String,
    b: String,
}

/// The fields that differ.
#[derive(Debug, Default)]
struct Differences(Vec<Difference>);

impl Differences {
    fn check(&mut self, field: impl Into<String>, a: impl ToString, b: impl ToString) {
        let (a, b) = (a.to_string(), b.to_string());
        if a != b {
            self.0.push(Difference { field: field.into(), a, b });
        }
    }
}

fn shown<T: ToString>(value: Option<&T>) -> String {
    value.map_or("none".to_owned(), ToString::to_string)
}

/// Refuses runs whose samples are not pairs. `common`: tasks and samples that only one of them has are no reason.
///
/// # Errors
/// [`Error::Setting`] with every field that differs and both values.
pub fn check(a: &Side, b: &Side, common: bool) -> Result<()> {
    let mut differ = Differences::default();
    differ.check("protocol", a.protocol(), b.protocol());
    differ.check("tokenizer sha256", &a.results.model.tokenizer_digest, &b.results.model.tokenizer_digest);
    if !common {
        differ.check("tasks", labels(a), labels(b));
    }
    for (i, task) in a.results.tasks.iter().enumerate() {
        let Some(j) = b.results.tasks.iter().position(|t| t.label == task.label) else { continue };
        let other = &b.results.tasks[j];
        let before = differ.0.len();
        settings(&mut differ, (a, i), (b, j));
        of_task(&mut differ, task, other);
        // Settings explain other prompts; then the hashes say nothing new.
        if !common && differ.0.len() == before {
            differ.check(at(task, "samples"), task.samples, other.samples);
            differ.check(at(task, "prompts sha256"), &task.prompts_sha256, &other.prompts_sha256);
        }
    }
    if differ.0.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> =
        differ.0.iter().map(|d| format!("{}: {} in A, {} in B", d.field, d.a, d.b)).collect();
    let only_sets = differ
        .0
        .iter()
        .all(|d| d.field == "tasks" || d.field.ends_with(" samples") || d.field.ends_with(" prompts sha256"));
    let way_out = if only_sets {
        "--common compares the samples that both have"
    } else {
        "decode both with the same prompts, tokenizer and data"
    };
    let what = format!("these runs are no pairs:\n  {}\n{way_out}", lines.join("\n  "));
    bail!(Error::setting("compare", what))
}

fn labels(side: &Side) -> String {
    side.results.tasks.iter().map(|t| t.label.as_str()).collect::<Vec<_>>().join(", ")
}

fn at(task: &TaskRecord, field: &str) -> String {
    format!("task `{}`, {field}", task.label)
}

fn of_task(differ: &mut Differences, a: &TaskRecord, b: &TaskRecord) {
    differ.check(
        at(a, "generator"),
        format!("{} v{}", a.name, a.version),
        format!("{} v{}", b.name, b.version),
    );
    differ.check(at(a, "length"), a.length, b.length);
    differ.check(at(a, "unit of the score"), &a.unit, &b.unit);
    differ.check(at(a, "teacher forced"), a.teacher_forced, b.teacher_forced);
    differ.check(at(a, "chance"), shown(a.chance.as_ref()), shown(b.chance.as_ref()));
    differ.check(at(a, "data sha256"), shown(a.data_sha256.as_ref()), shown(b.data_sha256.as_ref()));
}

/// Parameters as they were configured (template, number of needles, ...), where both runs kept their configuration.
fn settings(differ: &mut Differences, (a, i): (&Side, usize), (b, j): (&Side, usize)) {
    let (Some(x), Some(y)) = (&a.tasks, &b.tasks) else { return };
    let (x, y) = (&x[i], &y[j]);
    let keys: std::collections::BTreeSet<&String> = x.keys().chain(y.keys()).collect();
    for key in keys.into_iter().filter(|k| !SIZES.contains(&k.as_str()) && *k != "length" && *k != "name") {
        let field = at(&a.results.tasks[i], key);
        differ.check(field, shown(x.get(key)), shown(y.get(key)));
    }
}

/// What may differ between runs that are compared, and a reader must know.
pub fn notes(a: &Side, b: &Side) -> Vec<String> {
    let mut differ = Differences::default();
    let (x, y) = (&a.head, &b.head);
    differ.check("model", &x.model, &y.model);
    differ.check("weights sha256", short(&x.weights_sha256), short(&y.weights_sha256));
    differ.check("seed", x.seed, y.seed);
    differ.check("repeats", a.results.repeats, b.results.repeats);
    differ.check("backend", shown(x.backend.as_ref()), shown(y.backend.as_ref()));
    differ.check("processor", shown(x.cpu.as_ref()), shown(y.cpu.as_ref()));
    let sources = |s: &Option<String>| s.as_deref().map_or("none".to_owned(), short);
    differ.check("sources", sources(&x.source_sha256), sources(&y.source_sha256));
    differ.0.iter().map(|d| format!("{}: {} → {}", d.field, d.a, d.b)).collect()
}

fn short(hash: &str) -> String {
    crate::report::tables::short_hash(hash)
}
