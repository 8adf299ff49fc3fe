//! Rules that make a comparison fail: `accuracy<-0.5`, `decode_tok_s<-5%`, `decisions`.

use super::record::{Change, Comparison, Fired, RuleRecord, Verdict};
use crate::report::units::significant;
use anyhow::{Result, bail};
use oasis_core::Error;
use std::str::FromStr;

/// Rules without a number.
const WORDS: [(&str, Word); 5] = [
    ("worse", Word::Worse),
    ("tokens", Word::Tokens),
    ("counters", Word::Counters),
    ("bytes", Word::Bytes),
    ("decisions", Word::Decisions),
];

/// What a rule without a number looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    Worse,
    Tokens,
    Counters,
    Bytes,
    Decisions,
}

/// A rule of `--fail-on`.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    text: String,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Word(Word),
    Limit { metric: String, below: bool, limit: f64, relative: bool },
}

impl FromStr for Rule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        let refuse = |what: &str| {
            let words = WORDS.map(|w| w.0).join(", ");
            let example = "write METRIC<-POINTS, METRIC<-PERCENT%, METRIC>..., or one of";
            Err(Error::setting("--fail-on", format!("`{text}`: {what}; {example} {words}")))
        };
        if let Some((_, word)) = WORDS.iter().find(|w| w.0 == text) {
            return Ok(Self { text: text.to_owned(), kind: Kind::Word(*word) });
        }
        let Some(at) = text.find(['<', '>']) else { return refuse("no `<` or `>`") };
        let (metric, below) = (text[..at].trim(), text[at..].starts_with('<'));
        let number = text[at + 1..].trim();
        let (number, relative) = number.strip_suffix('%').map_or((number, false), |n| (n.trim_end(), true));
        let Some(limit) = number.parse::<f64>().ok().filter(|n| n.is_finite()) else {
            return refuse("no number after it");
        };
        if metric.is_empty() {
            return refuse("no metric before it");
        }
        if (below && limit > 0.0) || (!below && limit < 0.0) {
            return refuse("it fires where nothing changed");
        }
        let metric = metric.to_owned();
        Ok(Self { text: text.to_owned(), kind: Kind::Limit { metric, below, limit, relative } })
    }
}

impl Rule {
    /// The rules of one `--fail-on`, between commas.
    ///
    /// # Errors
    /// [`Error::Setting`] for one that can't be read.
    pub fn list(text: &str) -> Result<Vec<Self>, Error> {
        text.split(',').map(Self::from_str).collect()
    }

    /// Where the rule fires in a comparison.
    ///
    /// # Errors
    /// It names a metric that neither run has.
    pub fn check(&self, comparison: &Comparison) -> Result<RuleRecord> {
        let fired = match &self.kind {
            Kind::Word(word) => of_word(*word, comparison)?,
            Kind::Limit { metric, below, limit, relative } => {
                let changes: Vec<&Change> =
                    comparison.changes.iter().filter(|c| &c.metric == metric).collect();
                if changes.is_empty() {
                    bail!(unknown(&self.text, metric, comparison));
                }
                let fires = |c: &&&Change| beyond(c, *below, *limit, *relative);
                changes.iter().filter(fires).map(|c| fired(c, *relative)).collect()
            }
        };
        Ok(RuleRecord { rule: self.text.clone(), fired })
    }
}

fn unknown(rule: &str, metric: &str, comparison: &Comparison) -> Error {
    let mut known: Vec<&str> = comparison.changes.iter().map(|c| c.metric.as_str()).collect();
    known.sort_unstable();
    known.dedup();
    let mut what = format!("`{rule}`: no compared cell has `{metric}`; there are {}", known.join(", "));
    if comparison.common {
        what += " (with --common only what is computed sample by sample)";
    }
    Error::setting("--fail-on", what)
}

/// The change as the rule counts it: points of a share, per cent, or the metric's own unit. NaN where a side has no value.
fn size(change: &Change, relative: bool) -> f64 {
    let (Some(a), Some(b)) = (change.a, change.b) else { return f64::NAN };
    if !relative {
        return (b - a) * if change.unit.starts_with("share") { 100.0 } else { 1.0 };
    }
    if a == b { 0.0 } else { 100.0 * (b - a) / a.abs() }
}

/// A value that is missing or not a number never passes.
fn beyond(change: &Change, below: bool, limit: f64, relative: bool) -> bool {
    let size = size(change, relative);
    // A limit is met by what prints the same: 0.5 points of shares are no exact binary fraction.
    let slack = 1e-9 * limit.abs().max(1e-3);
    size.is_nan() || if below { size < limit - slack } else { size > limit + slack }
}

fn fired(change: &Change, relative: bool) -> Fired {
    let value = |v: Option<f64>| v.map_or("none".to_owned(), significant);
    let unit = match (relative, change.unit.starts_with("share")) {
        (true, _) => " %".to_owned(),
        (_, true) => " points".to_owned(),
        _ => format!(" {}", change.unit),
    };
    let task = change.task.as_deref().unwrap_or("all tasks");
    Fired {
        cell: change.cell.clone(),
        what: format!(
            "{task}: {} {} → {}, {:+.2}{unit}",
            change.metric,
            value(change.a),
            value(change.b),
            size(change, relative)
        ),
    }
}

fn of_word(word: Word, comparison: &Comparison) -> Result<Vec<Fired>> {
    if word == Word::Worse {
        let worse = comparison.rows.iter().filter(|r| r.primary && r.verdict == Verdict::Worse);
        let text =
            |r: &super::record::Row| format!("{}, p = {} after Holm", r.measure, significant(r.p_holm));
        return Ok(worse.map(|r| Fired { cell: r.cell.clone(), what: text(r) }).collect());
    }
    let mut all = Vec::new();
    for d in &comparison.decisions {
        let (same, what) = match word {
            Word::Tokens => (Some(d.tokens), "tokens"),
            Word::Counters => (Some(d.counters), "counters"),
            Word::Bytes => (Some(d.bytes), "bytes of steps"),
            _ => (d.decisions, "decisions"),
        };
        let Some(same) = same else {
            let why = "a run has no hashes of its decisions: decode it with this version";
            bail!(Error::setting("--fail-on", format!("`decisions`: {why}")));
        };
        if same < d.pairs {
            let first = d.first.as_deref().map_or(String::new(), |f| format!("; first: {f}"));
            let what = format!("{what} differ in {} of {} samples{first}", d.pairs - same, d.pairs);
            all.push(Fired { cell: d.cell.clone(), what });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(a: f64, b: f64, unit: &str) -> Change {
        Change {
            cell: "c".into(),
            task: None,
            metric: "m".into(),
            unit: unit.into(),
            a: Some(a),
            b: Some(b),
            higher_is_better: None,
        }
    }

    fn fires(rule: &str, change: &Change) -> bool {
        let rule: Rule = rule.parse().unwrap();
        let Kind::Limit { below, limit, relative, .. } = rule.kind else { panic!("no limit") };
        beyond(change, below, limit, relative)
    }

    #[test]
    fn points_are_of_shares_and_per_cent_of_the_first_value() {
        assert!(fires("m<-0.5", &change(0.80, 0.79, "share of samples")));
        assert!(!fires("m<-1", &change(0.80, 0.79, "share of samples")), "one point is not beyond one point");
        assert!(fires("m<-5%", &change(100.0, 94.0, "token/s")));
        assert!(!fires("m<-5%", &change(100.0, 95.0, "token/s")));
        assert!(fires("m>2", &change(1.0, 3.5, "nat")));
        assert!(!fires("m > 2 ", &change(1.0, 3.0, "nat")));
        assert!(!fires("m<0", &change(0.3, 0.3, "share")) && fires("m<0", &change(0.3, 0.29, "share")));
    }

    #[test]
    fn what_is_missing_or_no_number_never_passes() {
        assert!(fires("m<-50", &Change { b: None, ..change(1.0, 1.0, "share") }));
        assert!(fires("m>50%", &change(f64::NAN, 1.0, "nat")));
        assert!(fires("m>50%", &change(0.0, 1.0, "byte/step")), "from nothing to something");
        assert!(!fires("m>50%", &change(0.0, 0.0, "byte/step")));
    }

    #[test]
    fn a_rule_that_cannot_be_read_is_refused_with_the_way_out() {
        for bad in ["", "accuracy", "accuracy<", "<-1", "accuracy<x", "accuracy<nan", "accuracy<0.5", "m>-1%"]
        {
            let error = bad.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains("--fail-on") && error.contains("decisions"), "{error}");
        }
        assert_eq!(Rule::list("accuracy<-0.5, bytes,decode_tok_s<-5%").unwrap().len(), 3);
    }
}
