//! What a task type gives, and how many units of filler a length holds.

use super::encoder::Encoder;
use crate::prompt::{Frame, Parts, Tokens};
use oasis_core::{Error, Result};

/// One prompt as a function of its number of filler units. What was drawn does not depend on that number.
pub(crate) trait Recipe {
    /// The fewest units.
    fn least(&self) -> usize;

    /// The most units.
    fn most(&self) -> usize;

    /// Tokens that `units` units add to the fewest, by piece counts; never falls.
    fn extra(&self, units: usize) -> usize;

    /// The prompt with `units` units.
    fn parts(&self, units: usize) -> Parts;

    /// Acceptable answers, or all parts of the answer.
    fn references(&self) -> &[String];

    /// The gold continuation, with white space in front.
    fn answer(&self) -> String {
        format!(" {}", self.references().join(", "))
    }

    /// More filler was at hand, and none of it fits.
    fn tight(&self) -> bool {
        false
    }

    /// References that must be in the context.
    fn present(&self) -> &[String] {
        self.references()
    }
}

/// A prompt with as many units as fit.
pub(crate) struct Sized {
    pub tokens: Tokens,
    pub parts: Parts,
    /// Tokens of one more unit; `None` if there is none.
    pub next: Option<usize>,
}

/// The most units whose prompt has at most `length - answer` tokens: a bisection on piece counts, then corrections by
/// real encodings where the tokenizer's pieces do not add up.
///
/// # Errors
/// The fewest units do not fit, with the length that they need.
pub(crate) fn size(
    recipe: &dyn Recipe,
    encoder: &mut Encoder<'_>,
    frame: &Frame,
    task: &str,
    (length, answer): (usize, usize),
) -> Result<Sized> {
    let make = |encoder: &mut Encoder<'_>, units: usize| -> Result<(Parts, Tokens)> {
        let parts = recipe.parts(units);
        let tokens = encoder.prompt(&frame.write(&parts))?;
        Ok((parts, tokens))
    };
    let least = recipe.least();
    let (mut parts, mut tokens) = make(encoder, least)?;
    let base = tokens.ids.len();
    let Some(room) = length.checked_sub(answer).filter(|room| *room >= base) else {
        let needed = base + answer;
        let what = format!(
            "{length} tokens can't hold the smallest prompt of `{task}` (here {base} tokens and {answer} for the answer); \
             give at least {needed}"
        );
        return Err(Error::setting("length", what));
    };
    let (mut low, mut high) = (least, recipe.most() + 1);
    let mut guess = bisect(low, high, |units| base + recipe.extra(units) <= room);
    while guess > low && guess < high {
        let (made, found) = make(encoder, guess)?;
        let used = found.ids.len();
        if used <= room {
            (low, parts, tokens) = (guess, made, found);
            let step = step(recipe, low).filter(|step| *step <= room - used);
            guess = step.map_or(low, |step| low + ((room - used) / step.max(1)).max(1));
        } else {
            high = guess;
            let step = (recipe.extra(guess) - recipe.extra(guess - 1)).max(1);
            guess = guess.saturating_sub((used - room).div_ceil(step));
            if guess <= low {
                guess = low + (high - low) / 2;
            }
        }
        guess = guess.clamp(low, high - 1);
    }
    Ok(Sized { tokens, parts, next: step(recipe, low) })
}

/// Tokens of the unit behind `units`; `None` if that is all.
fn step(recipe: &dyn Recipe, units: usize) -> Option<usize> {
    (units < recipe.most()).then(|| recipe.extra(units + 1) - recipe.extra(units))
}

/// The largest number of `low..high` for which `fits` holds; it holds for `low` and does not come back once it fails.
fn bisect(mut low: usize, mut high: usize, fits: impl Fn(usize) -> bool) -> usize {
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{byte_tokenizer, prefixing_tokenizer};
    use oasis_core::text::Tokenizer;

    /// Filler of words that it takes to have `cost` tokens each.
    struct Words {
        least: usize,
        cost: usize,
    }

    impl Recipe for Words {
        fn least(&self) -> usize {
            self.least
        }
        fn most(&self) -> usize {
            5000
        }
        fn extra(&self, units: usize) -> usize {
            (units - self.least) * self.cost
        }
        fn parts(&self, units: usize) -> Parts {
            let [question, lead] = ["\nWhat?", " It is"].map(str::to_owned);
            Parts { context: vec!["word"; units].join(" "), question, lead }
        }
        fn references(&self) -> &[String] {
            &[]
        }
    }

    fn fill(tokenizer: &Tokenizer, cost: usize, length: usize) -> usize {
        let mut encoder = Encoder::new(tokenizer, "t", false);
        encoder.probe(&Frame::default().write(&Words { least: 2, cost }.parts(9))).unwrap();
        let recipe = Words { least: 2, cost };
        let sized = size(&recipe, &mut encoder, &Frame::default(), "t", (length, 10)).unwrap();
        assert!(sized.tokens.ids.len() + 10 <= length);
        sized.tokens.ids.len() + 10
    }

    #[test]
    fn as_many_units_as_fit_whatever_the_estimate() {
        for tokenizer in [byte_tokenizer(), prefixing_tokenizer()] {
            for cost in [5, 3, 9] {
                for length in [60, 61, 64, 1000, 2003] {
                    let used = fill(tokenizer, cost, length);
                    assert!(used + 9 > length, "cost {cost}: {used} of {length}");
                }
            }
        }
    }

    #[test]
    fn a_length_that_is_too_small_says_what_is_enough() {
        let recipe = Words { least: 2, cost: 5 };
        let mut encoder = Encoder::new(byte_tokenizer(), "t", false);
        let mut of = |length| size(&recipe, &mut encoder, &Frame::default(), "t", (length, 10));
        let error = of(12).err().unwrap().to_string();
        let least: usize = error.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(of(least).is_ok() && of(least - 1).is_err() && of(3).is_err(), "{error}");
    }

    #[test]
    fn bisection_finds_the_edge() {
        for edge in 0..9 {
            assert_eq!(bisect(0, 9, |n| n <= edge), edge);
        }
    }
}
