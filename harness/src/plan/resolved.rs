//! The complete configuration as text, and as the bytes that a fingerprint is made of.

use super::{Plan, PlannedCell};
use crate::spec::{DECODE_KEYS, Origin};
use std::fmt::Write;

/// A resolved configuration. Given to `oasis run -c`, it plans the same run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// TOML, each value with a comment that says where it came from.
    pub text: String,
    /// The same values without comments and without what changes no result (workers).
    pub canonical: String,
}

struct Writer {
    text: String,
    canonical: String,
}

impl Writer {
    fn header(&mut self, header: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        let _ = writeln!(self.text, "{gap}{header}");
        let _ = writeln!(self.canonical, "{header}");
    }

    fn value(&mut self, key: &str, value: &toml::Value, origin: Origin) {
        let _ = writeln!(self.text, "{:<44} # {origin}", format!("{key} = {value}"));
        let _ = writeln!(self.canonical, "{key} = {value}");
    }
}

pub(super) fn resolve(plan: &Plan) -> Resolved {
    let mut w = Writer { text: String::new(), canonical: String::new() };
    w.shared(plan, &[]);
    for cell in &plan.cells {
        w.header("[[cell]]");
        w.value("label", &cell.label.clone().into(), Origin::Derived);
        w.value("family", &cell.family.clone().unwrap_or_default().into(), Origin::Derived);
        if cell.added {
            w.value("added", &true.into(), Origin::Derived);
        }
        w.decode(cell);
    }
    Resolved { text: w.text, canonical: w.canonical }
}

/// What one cell measures: the plan without its name and its other cells, the cell without its own names.
pub(super) fn canonical_of(plan: &Plan, cell: &PlannedCell) -> String {
    let mut w = Writer { text: String::new(), canonical: String::new() };
    w.shared(plan, &["name"]);
    w.header("[[cell]]");
    w.decode(cell);
    w.canonical
}

impl Writer {
    /// Everything but the cells.
    fn shared(&mut self, plan: &Plan, without: &[&str]) {
        let mut table = "";
        for (in_table, key, value, origin) in plan.head.iter().filter(|h| !without.contains(&h.1)) {
            if *in_table != table {
                table = in_table;
                self.header(&format!("[{table}]"));
            }
            self.value(key, value, *origin);
        }
        for task in &plan.tasks {
            let [length, samples, indices] = task.origins;
            self.header("[[task]]");
            self.value("name", &task.name.clone().into(), Origin::File);
            self.value("label", &task.label.clone().into(), Origin::Derived);
            self.value("length", &(task.length as i64).into(), length);
            self.value("samples", &(task.samples as i64).into(), samples);
            if task.indices.len() < task.samples {
                let list: Vec<toml::Value> = task.indices.iter().map(|&i| (i as i64).into()).collect();
                self.value("indices", &list.into(), indices);
            }
            for (key, value) in &task.own {
                self.value(key, value, Origin::File);
            }
        }
    }

    /// The keys of a cell.
    fn decode(&mut self, cell: &PlannedCell) {
        for key in DECODE_KEYS {
            if let (Some(value), Some(&origin)) = (cell.values.get(key), cell.origins.get(key)) {
                self.value(key, value, origin);
            }
        }
    }
}
