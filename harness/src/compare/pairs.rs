//! Samples of both runs side by side, and what their differences say.

use super::cells::CellPair;
use super::record::{Decisions, Row, Verdict};
use super::side::{Side, Unit};
use super::statistics::{Cluster, bootstrap, holm, mcnemar, sign_flip, tango};
use crate::record::{SampleRecord, TaskRecord};
use crate::report::metric;
use crate::run::Values;
use anyhow::{Result, bail};
use oasis_core::Error;
use std::collections::BTreeMap;

/// The same sample decoded in both runs.
#[derive(Clone, Copy)]
pub struct Pair<'a> {
    /// In A.
    pub a: &'a SampleRecord,
    /// In B.
    pub b: &'a SampleRecord,
}

/// How tests are made.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Confidence of the intervals.
    pub level: f64,
    /// Seed of draws.
    pub seed: u64,
}

/// The pairs of a cell on a task, and how many samples only one run has.
///
/// # Errors
/// The sets of decoded samples differ and `common` does not allow it; the prompts of a pair differ.
pub fn paired<'a>(
    (a, b): (&'a Side, &'a Side),
    cell: &CellPair,
    task: &str,
    common: bool,
) -> Result<(Vec<Pair<'a>>, usize)> {
    let (of_a, of_b) = (a.done(&cell.a, task), b.done(&cell.b, task));
    let alone = |x: &BTreeMap<Unit<'a>, _>, y: &BTreeMap<Unit<'a>, _>| -> Vec<String> {
        x.keys().filter(|k| !y.contains_key(*k)).map(|(s, r)| format!("{s} (repeat {r})")).collect()
    };
    let (only_a, only_b) = (alone(&of_a, &of_b), alone(&of_b, &of_a));
    if !common && let Some(first) = only_a.first().or(only_b.first()) {
        let what = format!(
            "cell `{}`, task `{task}`: {} decoded samples in A, {} in B, {first} in one only; --common compares the \
             samples that both have, `oasis run --resume` completes a run",
            cell.name,
            of_a.len(),
            of_b.len(),
        );
        bail!(Error::setting("compare", what));
    }
    let mut pairs = Vec::new();
    for (key, &x) in &of_a {
        let Some(&y) = of_b.get(key) else { continue };
        if x.prompt_sha256 != y.prompt_sha256 {
            let what = format!(
                "sample {}: prompt sha256 is {} in A, {} in B; decode both with the same prompts",
                key.0, x.prompt_sha256, y.prompt_sha256
            );
            bail!(Error::setting("compare", what));
        }
        pairs.push(Pair { a: x, b: y });
    }
    Ok((pairs, only_a.len() + only_b.len()))
}

/// What is tested on a task: name and whether more is better.
pub fn measure(task: &TaskRecord) -> (&'static str, bool) {
    if task.teacher_forced { (metric::KL, false) } else { (metric::ACCURACY, true) }
}

/// Its value in a sample.
///
/// # Errors
/// It has none, or a score is outside of 0 to 1.
fn value(s: &SampleRecord, forced: bool, side: &str) -> Result<f64> {
    let at = || format!("{side}, sample {}, cell `{}`", s.sample, s.cell);
    if forced {
        let sums = s.fidelity.as_ref().filter(|f| f.positions > 0);
        let kl = sums.map(|f| f.kl / f.positions as f64);
        return kl.ok_or_else(|| anyhow::anyhow!("{}: no distance from dense decoding was recorded", at()));
    }
    let Some(score) = s.score else { bail!("{}: no score was recorded", at()) };
    if !(0.0..=1.0).contains(&score) {
        let what = format!("{}: score {score} is not in 0 to 1; scores of 0 to 100 are another unit", at());
        bail!(Error::setting("compare", what));
    }
    Ok(score)
}

/// What a row is of.
pub struct Subject<'a> {
    /// [`CellPair::name`].
    pub cell: &'a str,
    /// Task; none: all of them.
    pub task: Option<&'a str>,
    /// Name and direction.
    pub measure: (&'static str, bool),
    /// Unit.
    pub unit: &'a str,
    /// It stands for its cell.
    pub primary: bool,
    /// Dense decoding does not solve it.
    pub at_chance: bool,
}

/// Tests some pairs; none without a pair. The verdict is [`Verdict::NotSignificant`] until [`judge`] knows all p.
///
/// # Errors
/// A sample without the measure, a score outside of 0 to 1.
pub fn row(subject: &Subject<'_>, pairs: &[Pair<'_>], settings: Settings) -> Result<Option<Row>> {
    let forced = subject.measure.0 == metric::KL;
    let (mut differences, mut clusters) = (Values::default(), BTreeMap::<&str, Cluster>::new());
    let (mut sum_a, mut sum_b, mut higher, mut lower, mut binary) = (0.0, 0.0, 0, 0, true);
    for pair in pairs {
        let (x, y) = (value(pair.a, forced, "A")?, value(pair.b, forced, "B")?);
        differences.push(&pair.a.document, y - x);
        let cluster = clusters.entry(&pair.a.document).or_insert(Cluster { sum: 0.0, n: 0 });
        (cluster.sum, cluster.n) = (cluster.sum + (y - x), cluster.n + 1);
        (sum_a, sum_b) = (sum_a + x, sum_b + y);
        (higher, lower) = (higher + usize::from(y > x), lower + usize::from(y < x));
        binary &= !forced && [x, y].iter().all(|v| *v == 0.0 || *v == 1.0);
    }
    let n = pairs.len();
    let Some(difference) = differences.mean() else { return Ok(None) };
    let documents = clusters.len();
    let clusters: Vec<Cluster> = clusters.into_values().collect();
    let (method, p, interval) = if binary && documents == n {
        let (gained, lost) = (higher as u64, lower as u64);
        ("McNemar, Tango", mcnemar(gained, lost), tango(gained, lost, n as u64, settings.level))
    } else {
        let interval = bootstrap(&clusters, settings.level, settings.seed);
        ("signs, bootstrap", sign_flip(&clusters, settings.seed), interval)
    };
    Ok(Some(Row {
        cell: subject.cell.to_owned(),
        task: subject.task.map(str::to_owned),
        measure: subject.measure.0.to_owned(),
        unit: subject.unit.to_owned(),
        primary: subject.primary,
        n,
        documents,
        a: sum_a / n as f64,
        b: sum_b / n as f64,
        difference,
        stderr: differences.stderr(),
        interval,
        higher,
        lower,
        method: method.to_owned(),
        p,
        p_holm: p,
        verdict: match (subject.at_chance, higher + lower, documents) {
            (true, ..) => Verdict::AtChance,
            (_, 0, _) if !difference.is_nan() => Verdict::Equal,
            (.., 0 | 1) => Verdict::TooFew,
            _ => Verdict::NotSignificant,
        },
    }))
}

/// Holm's correction and the verdicts that follow: over the cells for the rows that stand for one, over (cell, task) for
/// the others. Tasks at chance are not tested, so they take no part.
pub fn judge(rows: &mut [Row], level: f64) {
    for primary in [true, false] {
        let tested = |r: &Row| r.primary == primary && r.verdict != Verdict::AtChance;
        let family: Vec<usize> = (0..rows.len()).filter(|&i| tested(&rows[i])).collect();
        let p: Vec<f64> = family.iter().map(|&i| rows[i].p).collect();
        for (&i, adjusted) in family.iter().zip(holm(&p)) {
            let row = &mut rows[i];
            row.p_holm = adjusted;
            // A p that is no number is no evidence.
            if row.verdict == Verdict::NotSignificant && adjusted <= 1.0 - level {
                let good = (row.difference > 0.0) == (row.measure == metric::ACCURACY);
                row.verdict = if good { Verdict::Better } else { Verdict::Worse };
            }
        }
    }
}

/// Counts the pairs that are equal to the bit.
pub fn decisions(cell: &str, pairs: &[Pair<'_>]) -> Decisions {
    let mut d = Decisions {
        cell: cell.to_owned(),
        pairs: pairs.len(),
        tokens: 0,
        counters: 0,
        bytes: 0,
        decisions: Some(0),
        bytes_a: 0,
        bytes_b: 0,
        first: None,
    };
    for Pair { a, b } in pairs {
        let hashes = a.decisions.as_ref().zip(b.decisions.as_ref());
        // What neither run ranks has no decisions to differ in.
        let none = a.counters.wanted == 0 && b.counters.wanted == 0;
        let decided = hashes.map(|(x, y)| x == y).or(none.then_some(true));
        let tests = [
            ("tokens", a.generated == b.generated),
            ("counters", a.counters == b.counters && a.step_hits == b.step_hits),
            ("bytes", a.step_bytes == b.step_bytes),
            ("decisions", decided.unwrap_or(true)),
        ];
        d.tokens += usize::from(tests[0].1);
        d.counters += usize::from(tests[1].1);
        d.bytes += usize::from(tests[2].1);
        d.decisions = d.decisions.zip(decided).map(|(n, same)| n + usize::from(same));
        (d.bytes_a, d.bytes_b) = (d.bytes_a + a.counters.bytes_h2d, d.bytes_b + b.counters.bytes_h2d);
        let differ: Vec<&str> = tests.iter().filter(|t| !t.1).map(|t| t.0).collect();
        if !differ.is_empty() && d.first.is_none() {
            d.first = Some(format!("{} ({})", a.sample, differ.join(", ")));
        }
    }
    d
}
