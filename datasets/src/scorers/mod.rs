//! Published scorers: from the text of an answer to a number between 0 and 1.
//!
//! Each follows the evaluation script of its benchmark, oddities included, so that scores can be compared with
//! published ones. `datasets/tests/published.rs` proves them on recorded predictions.

pub mod infinitebench;
pub mod letter;
pub mod longbench;
pub mod number;
pub mod rouge;
pub mod text;

use infinitebench::InfiniteBenchMetric;
use longbench::LongBenchMetric;

/// What an answer is compared with.
#[derive(Debug, Clone, Copy)]
pub struct Gold<'a> {
    /// Acceptable answers, or all parts of the answer.
    pub references: &'a [String],
    /// The classes of a closed question; empty otherwise.
    pub choices: &'a [String],
}

/// The rule by which a text is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scorer {
    /// GSM8K: the last number before the next question equals the gold number (Cobbe et al. 2021).
    LastNumber,
    /// AIME: the last boxed integer, or else the last integer, equals the gold one.
    BoxedInteger,
    /// GPQA: the letter that the answer names is the gold one (Rein et al. 2023).
    Letter,
    /// LongBench v2: the letter after "The correct answer is" is the gold one (Bai et al. 2024).
    StatedLetter,
    /// RULER but for its question answering: share of the references in the text, ignoring case (Hsieh et al. 2024).
    EveryReference,
    /// RULER's question answering: 1 if any reference is in the text, ignoring case.
    AnyReference,
    /// LongEval lines: the last integer is the gold one (Li et al. 2023).
    LastInteger,
    /// NQ-open: a reference is in the first line, both normalised (Liu et al. 2023).
    Subspan,
    /// A metric of LongBench (Bai et al. 2023).
    LongBench(LongBenchMetric),
    /// A metric of InfiniteBench (Zhang et al. 2024).
    InfiniteBench(InfiniteBenchMetric),
}

impl Scorer {
    /// Score of `prediction`, from 0 to 1.
    pub fn score(self, prediction: &str, gold: Gold<'_>) -> f64 {
        let Gold { references, choices } = gold;
        let any = |right: &dyn Fn(&str) -> bool| f64::from(references.iter().any(|r| right(r)));
        match self {
            Self::LastNumber => any(&|r| number::gsm8k(prediction, r)),
            Self::BoxedInteger => any(&|r| number::aime(prediction, r)),
            Self::Letter => any(&|r| letter::gpqa(prediction).is_some_and(|found| r.starts_with(found))),
            Self::StatedLetter => {
                any(&|r| letter::stated(prediction).is_some_and(|found| r.starts_with(found)))
            }
            Self::EveryReference => text::share_contained(prediction, references),
            Self::AnyReference => f64::from(text::share_contained(prediction, references) > 0.0),
            Self::LastInteger => any(&|r| number::last_integer_is(prediction, r)),
            Self::Subspan => f64::from(text::subspan(prediction, references)),
            Self::LongBench(metric) => metric.score(prediction, references, choices),
            Self::InfiniteBench(metric) => metric.score(prediction, references),
        }
    }

    /// Unit of the mean score.
    pub fn unit(self) -> &'static str {
        match self {
            Self::EveryReference => "share of references",
            Self::LongBench(metric) => metric.unit(),
            Self::InfiniteBench(metric) => metric.unit(),
            _ => "share of samples",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(scorer: Scorer, prediction: &str, references: &[&str]) -> f64 {
        let references: Vec<String> = references.iter().map(|&r| r.to_owned()).collect();
        scorer.score(prediction, Gold { references: &references, choices: &[] })
    }

    #[test]
    fn ruler_counts_shares_and_hits() {
        let references = ["4829104", "AbCde"];
        assert_eq!(score(Scorer::EveryReference, "it is abcDE", &references), 0.5);
        assert_eq!(score(Scorer::EveryReference, "ABCDE and 4829104", &references), 1.0);
        assert_eq!(score(Scorer::EveryReference, "", &references), 0.0);
        assert_eq!(score(Scorer::AnyReference, "it is abcDE", &references), 1.0);
        assert_eq!(score(Scorer::AnyReference, "it is abcD", &references), 0.0);
        assert_eq!(score(Scorer::EveryReference, "anything", &[]), 0.0);
    }

    #[test]
    fn nothing_scores_for_an_empty_answer() {
        use InfiniteBenchMetric as I;
        use LongBenchMetric as L;
        let all = [
            Scorer::LastNumber,
            Scorer::BoxedInteger,
            Scorer::Letter,
            Scorer::StatedLetter,
            Scorer::EveryReference,
            Scorer::AnyReference,
            Scorer::LastInteger,
            Scorer::Subspan,
        ];
        let all =
            all.into_iter().chain(I::ALL.map(Scorer::InfiniteBench)).chain(L::ALL.map(Scorer::LongBench));
        for scorer in all {
            for prediction in ["", " \n", "\u{a0}…"] {
                assert_eq!(score(scorer, prediction, &["7", "A"]), 0.0, "{scorer:?} {prediction:?}");
            }
            assert!(!scorer.unit().is_empty());
        }
    }
}
