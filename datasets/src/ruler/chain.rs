//! Variable tracking: `vt`.

use super::{
    recipe::Recipe,
    shared::{Shared, insert, noise_lines},
    words::letters,
};
use crate::{draw::Draw, prompt::Parts};
use std::collections::HashSet;

/// Assignments behind the first.
const HOPS: usize = 4;
/// Lengths below this get a small worked example.
const SHORT: usize = 4096;
/// Tokens of the worked example's noise.
const EXAMPLE: usize = 300;

/// Variables that all have one value.
struct Chain {
    value: String,
    names: Vec<String>,
    lines: Vec<(f64, String)>,
}

impl Chain {
    fn new(name_letters: usize, taken: &mut HashSet<String>, draw: &mut Draw) -> Self {
        let value = draw.number(5);
        let mut names = Vec::with_capacity(HOPS + 1);
        while names.len() <= HOPS {
            let name = letters(draw, b'A', name_letters);
            if taken.insert(name.clone()) {
                names.push(name);
            }
        }
        let mut places: Vec<f64> = names.iter().map(|_| draw.unit()).collect();
        places.sort_by(f64::total_cmp);
        let sources = std::iter::once(value.clone()).chain(names.iter().map(|name| format!("VAR {name}")));
        let lines = names.iter().zip(sources).map(|(name, source)| format!("VAR {name} = {source}"));
        let lines = places.into_iter().zip(lines).collect();
        Self { value, names, lines }
    }

    fn problem(&self, sentences: usize) -> (String, String, String) {
        let body = insert(noise_lines(sentences), &self.lines);
        let (value, n) = (&self.value, self.names.len());
        (
            format!("Keep track of the variables that are assigned in the following text.\n\n{body}"),
            format!(
                "\nQuestion: Which variables have the value {value} in the text above? Name all of them."
            ),
            format!(" Answer: By the assignments in the text above, {n} variables have the value {value}:"),
        )
    }
}

/// One prompt: a worked example and a problem.
pub(crate) struct Tracking<'a> {
    shared: &'a Shared<'a>,
    example: String,
    chain: Chain,
}

impl<'a> Tracking<'a> {
    /// Draws the example and the problem. The example's names have three letters, the problem's five.
    pub fn new(shared: &'a Shared<'a>, draw: &mut Draw) -> Self {
        let mut taken = HashSet::new();
        let example = Chain::new(3, &mut taken, draw);
        let chain = Chain::new(5, &mut taken, draw);
        let noise = if shared.length < SHORT { shared.length / 16 } else { EXAMPLE };
        let sentences = (0..).take_while(|&n| shared.noise_tokens(n) <= noise).last().unwrap_or(0);
        let (context, question, lead) = example.problem(sentences);
        let example = format!("{context}{question}{lead} {}\n\n", example.names.join(" "));
        Self { shared, example, chain }
    }
}

impl Recipe for Tracking<'_> {
    fn least(&self) -> usize {
        0
    }

    fn most(&self) -> usize {
        self.shared.length
    }

    fn extra(&self, units: usize) -> usize {
        self.shared.noise_tokens(units) + units / 5
    }

    fn parts(&self, units: usize) -> Parts {
        let (context, question, lead) = self.chain.problem(units);
        Parts { context: format!("{}{context}", self.example), question, lead }
    }

    fn references(&self) -> &[String] {
        &self.chain.names
    }

    fn answer(&self) -> String {
        format!(" {}", self.chain.names.join(" "))
    }
}
