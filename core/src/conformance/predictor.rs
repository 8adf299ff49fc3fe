//! The contract of [`Predictor`].

use super::{Checked, Finding, Findings, ensure, rng};
use crate::Result;
use crate::geometry::{Geometry, World};
use crate::policy::{Predictor, Ranking, StepView};
use rand::RngExt;

/// Runs the contract of [`Predictor`] over `cases` instances, each through a few steps and layers of a random
/// small model with random draft trees.
///
/// Rows lie within the pass and are not none; a query has the model's width, scores have one number a KV head
/// and candidate, and both are finite; same seed, same rankings, whatever ran before; needs never change.
pub fn check_predictor(build: &dyn Fn(u64) -> Result<Box<dyn Predictor>>, cases: usize) -> Vec<Finding> {
    let mut findings = Findings::default();
    for seed in 0..cases as u64 {
        findings.note(seed, || rankings(build, seed));
    }
    findings.0
}

/// A ranking that can be compared.
#[derive(Debug, Clone, PartialEq)]
enum Answer {
    Rows(u32),
    Query(Vec<f32>),
    Scores(Vec<f32>),
}

fn rankings(build: &dyn Fn(u64) -> Result<Box<dyn Predictor>>, seed: u64) -> Checked {
    let first = sequence(build(seed)?.as_mut(), seed)?;
    // Another sequence in between: nothing of it may stay.
    sequence(build(seed)?.as_mut(), seed + 1)?;
    let again = sequence(build(seed)?.as_mut(), seed)?;
    let at = first.iter().zip(&again).position(|(a, b)| a != b);
    ensure(
        at.is_none() && first.len() == again.len(),
        "same seed, same rankings, whatever ran before",
        || {
            let at = at.unwrap_or(0);
            format!("ranking {at}: {:?} and then {:?}", first[at], again[at])
        },
    )
}

/// The answers of one instance to a few steps of one sequence.
fn sequence(predictor: &mut dyn Predictor, seed: u64) -> Checked<Vec<Answer>> {
    let mut rng = rng(seed, 7);
    let kv_heads = rng.random_range(1..4);
    let geometry = Geometry {
        layers: rng.random_range(1..4),
        hidden: 16,
        intermediate: 32,
        heads: kv_heads * rng.random_range(1..4usize),
        kv_heads,
        head_dim: [1, 4, 64][rng.random_range(0..3)],
        vocab: 32,
        max_positions: 4096,
        world: World::default(),
    };
    let needs = predictor.needs();
    let mut answers = Vec::new();
    let (from, mut end) = (rng.random_range(0..3u32), 3 + rng.random_range(0..=seed as u32 % 40));
    for step in 1..=5 {
        end += rng.random_range(0..2u32);
        let rows = if needs.drafts { rng.random_range(1..9) } else { 1 };
        let parents: Vec<u32> =
            (0..rows as u32).map(|r| if r == 0 { 0 } else { rng.random_range(0..r) }).collect();
        let candidates = from..if rng.random_bool(0.1) { from } else { end };
        for layer in 0..geometry.layers {
            let len = if needs.queries { rows * geometry.q_dim() } else { 0 };
            let queries: Vec<f32> = (0..len).map(|_| rng.random_range(-3.0..3.0)).collect();
            let candidates = candidates.clone();
            let (geometry, parents) = (&geometry, parents.as_slice());
            let view = StepView { geometry, step, layer, rows, parents, candidates, queries: &queries };
            answers.push(checked(predictor.rank_with(&view), &view)?);
            ensure(predictor.needs() == needs, "its needs never change", || {
                format!("{needs:?} and then {:?}", predictor.needs())
            })?;
        }
    }
    Ok(answers)
}

fn checked(ranking: Ranking<'_>, view: &StepView<'_>) -> Checked<Answer> {
    let g = view.geometry;
    let shown = || {
        format!(
            "step {}, layer {}, {} rows, candidates {:?}",
            view.step, view.layer, view.rows, view.candidates
        )
    };
    let numbers = |values: &[f32], len: usize, contract| {
        let good = values.len() == len && values.iter().all(|v| v.is_finite());
        ensure(good, contract, || format!("{} of {len} numbers, {values:?}; {}", values.len(), shown()))
    };
    match ranking {
        Ranking::Rows(rows) => {
            let good = !rows.is_empty() && u64::from(rows.0) < 1 << view.rows;
            ensure(good, "ranking rows are rows of the pass, and not none", || {
                format!("{rows:?}; {}", shown())
            })?;
            Ok(Answer::Rows(rows.0))
        }
        Ranking::Query(query) => {
            numbers(&query, g.q_dim(), "a query is [heads][head_dim], finite")?;
            Ok(Answer::Query(query.into_owned()))
        }
        Ranking::Scores(scores) => {
            numbers(
                &scores,
                g.kv_heads * view.candidates.len(),
                "scores are [kv_heads][candidates], finite",
            )?;
            Ok(Answer::Scores(scores.into_owned()))
        }
    }
}
