//! The predictors' part of the conformance kit must find seeded faults. (Evictors and summaries are tested
//! where their tables are.)

use oasis_core::conformance::check_predictor;
use oasis_core::policy::{Needs, Predictor, Ranking, RowSet, StepView};
use std::borrow::Cow;
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    NoRow,
    RowBeyond,
    NarrowQuery,
    ScoresOfAllBlocks,
    NanScores,
    GlobalState,
    Fickle,
    Panics,
}

struct Faulty(Fault);

impl Predictor for Faulty {
    fn needs(&self) -> Needs {
        let drafts = self.0 != Fault::Fickle || NEXT.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        Needs { drafts, queries: self.0 == Fault::NarrowQuery, ..Needs::default() }
    }

    fn rank_with<'a>(&'a mut self, step: &'a StepView<'a>) -> Ranking<'a> {
        let (kv_heads, count) = (step.geometry.kv_heads, step.candidates.len());
        match self.0 {
            Fault::None | Fault::Fickle => Ranking::Rows(RowSet::drafts(step.rows).union(RowSet::CURRENT)),
            Fault::NoRow => Ranking::Rows(RowSet::drafts(step.rows)),
            Fault::RowBeyond => Ranking::Rows(RowSet(1 << step.rows)),
            Fault::NarrowQuery => Ranking::Query(Cow::Borrowed(&step.queries[1..step.geometry.q_dim()])),
            Fault::ScoresOfAllBlocks => {
                Ranking::Scores(Cow::Owned(vec![0.0; kv_heads * step.candidates.end as usize]))
            }
            Fault::NanScores => Ranking::Scores(Cow::Owned(vec![f32::NAN; kv_heads * count])),
            Fault::GlobalState => {
                let score = NEXT.fetch_add(1, Ordering::Relaxed) as f32;
                Ranking::Scores(Cow::Owned(vec![score; kv_heads * count]))
            }
            Fault::Panics => panic!("seeded at layer {}", step.layer),
        }
    }
}

#[test]
fn seeded_faults_of_predictors_are_found() {
    let check = |fault| check_predictor(&|_| Ok(Box::new(Faulty(fault)) as Box<dyn Predictor>), 64);
    assert_eq!(check(Fault::None), []);
    for (fault, contract) in [
        (Fault::NoRow, "not none"),
        (Fault::RowBeyond, "rows of the pass"),
        (Fault::NarrowQuery, "[heads][head_dim]"),
        (Fault::ScoresOfAllBlocks, "[kv_heads][candidates]"),
        (Fault::NanScores, "finite"),
        (Fault::GlobalState, "same seed, same rankings"),
        (Fault::Fickle, "needs never change"),
        (Fault::Panics, "does not panic"),
    ] {
        let findings = check(fault);
        let found = findings.iter().find(|f| f.contract.contains(contract));
        let found = found.unwrap_or_else(|| panic!("{fault:?} was not found; found were {findings:?}"));
        assert!(found.detail.len() < 2000, "{fault:?}: no small counter-example: {found}");
        assert!(found.to_string().contains(&format!("seed {}", found.seed)));
    }
}

#[test]
fn an_error_of_the_constructor_is_a_finding() {
    let findings = check_predictor(&|_| Err(oasis_core::Error::setting("x.y", "is 3; at most 2")), 8);
    assert_eq!(findings.len(), 1);
    assert!(findings[0].detail.contains("x.y: is 3"), "{}", findings[0]);
}
