//! One fact hidden in text, with prompts that fill a length to within a few tokens for any tokenizer.

use crate::{
    draw::Draw,
    prose::Prose,
    task::{Sample, prompt_sha256, sample_seed},
};
use oasis_core::{Error, Result, registry::Param, text::Tokenizer};
use serde::Deserialize;

/// Tokens that a model may use beyond those of the number itself.
const SPARE_TOKENS: usize = 4;
/// Unused tokens at which fitting stops.
const SLACK: usize = 2;
/// Digits of the hidden number; with fewer a guess may be right, with more small models fail.
const DIGITS: u32 = 5;

/// The parameter that both retrieval tasks have.
pub(crate) const DEPTH: Param = Param {
    name: "depth",
    about: "place of the fact, 0 (beginning) to 1 (end)",
    default: "drawn for each sample",
};

/// A depth as typed, checked.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct Depth(Option<f64>);

impl Depth {
    /// Refuses depths outside 0..1.
    pub fn check(self, task: &str) -> Result<Self> {
        match self.0 {
            Some(depth) if !(0.0..=1.0).contains(&depth) => {
                let what = format!("{depth} is no share; give a number from 0 (beginning) to 1 (end)");
                Err(Error::setting(format!("{task}.depth"), what))
            }
            _ => Ok(self),
        }
    }

    fn draw(self, draw: &mut Draw) -> f64 {
        let random = draw.unit();
        self.0.unwrap_or(random)
    }
}

/// The wording around the text. `{}` stands for the hidden number.
pub(crate) struct Wording {
    /// Name of the task.
    pub task: &'static str,
    /// Before the text.
    pub intro: &'static str,
    /// The hidden sentence.
    pub fact: &'static str,
    /// Behind the text: the question and the beginning of its answer.
    pub question: &'static str,
}

/// A text to hide something in, its wording and the place.
pub(crate) struct Haystack<'a> {
    pub wording: &'a Wording,
    pub prose: &'a Prose,
    pub depth: Depth,
}

/// What was drawn for one sample.
struct Plan {
    number: String,
    fact: String,
    /// Word behind the text's last word.
    end: usize,
    depth: f64,
}

impl Haystack<'_> {
    /// Samples `0..n`; `prompt.len() + max_new_tokens` is at most `length`.
    pub fn samples(&self, tokenizer: &Tokenizer, length: usize, n: usize, seed: u64) -> Result<Vec<Sample>> {
        (0..n).map(|index| self.sample(tokenizer, length, index, seed)).collect()
    }

    fn sample(&self, tokenizer: &Tokenizer, length: usize, index: usize, seed: u64) -> Result<Sample> {
        let task = self.wording.task;
        let seed = sample_seed(seed, task, length, index);
        let plan = self.plan(length, &mut Draw::new(seed))?;
        let words = self.fit(tokenizer, &plan, length)?;
        let (context, question) = self.compose(&plan, words);
        let whole = format!("{context}{question} {}.", plan.number);
        let whole = tokenizer.encode(&whole, true)?;
        // Where a token would span the border it goes to the later part, so that the parts are what one encoding gives.
        let cut = common(&whole, &tokenizer.encode(&format!("{context}{question}"), true)?);
        let question_at = common(&whole[..cut], &tokenizer.encode(&context, true)?);
        let prompt = whole[..cut].to_vec();
        Ok(Sample {
            id: format!("{task}-{length}-{index}"),
            task: task.to_owned(),
            index,
            seed,
            question_at,
            answer: whole[cut..].to_vec(),
            references: vec![plan.number],
            choices: Vec::new(),
            cut: 0,
            max_new_tokens: whole.len() - cut + SPARE_TOKENS,
            prompt_sha256: prompt_sha256(&prompt),
            document: format!("{task}-{length}-{index}"),
            prompt,
        })
    }

    fn plan(&self, length: usize, draw: &mut Draw) -> Result<Plan> {
        let words = self.prose.len();
        if words < length {
            let what = format!(
                "the text has {words} words, and {length} tokens may need as many; give a longer text or a length of \
                 at most {words}"
            );
            return Err(Error::setting(format!("{}.text", self.wording.task), what));
        }
        let number = draw.number(DIGITS);
        // The text ends with a sentence and has at least `length` words, more than can be needed.
        let ends = self.prose.sentences();
        let first = ends.partition_point(|&word| word < length);
        let choice = first + draw.index(ends.len() - first + 1);
        Ok(Plan {
            fact: self.wording.fact.replace("{}", &number),
            number,
            end: ends.get(choice).copied().unwrap_or(words),
            depth: self.depth.draw(draw),
        })
    }

    /// The prompt with `words` words of text: all before the question, and the question.
    fn compose(&self, plan: &Plan, words: usize) -> (String, &'static str) {
        let from = plan.end - words.min(plan.end);
        let wanted = from + (plan.depth * (plan.end - from) as f64).round() as usize;
        let at = self.border(wanted, from, plan.end);
        let (before, after) = (self.prose.slice(from, at), self.prose.slice(at, plan.end));
        let gap_before = match (before.is_empty(), self.prose.gap(at)) {
            (true, _) => "",
            (false, "") => " ",
            (false, gap) => gap,
        };
        let gap_after = if after.is_empty() { "" } else { " " };
        let context = format!("{}{before}{gap_before}{}{gap_after}{after}", self.wording.intro, plan.fact);
        (context, self.wording.question)
    }

    /// The place between two sentences of words `from..to` that is nearest to word `wanted`.
    fn border(&self, wanted: usize, from: usize, to: usize) -> usize {
        let starts = self.prose.sentences();
        let next = starts.partition_point(|&word| word < wanted);
        let candidates = [starts.get(next), next.checked_sub(1).and_then(|i| starts.get(i))];
        candidates
            .into_iter()
            .flatten()
            .copied()
            .filter(|word| (from..=to).contains(word))
            .chain([to])
            .min_by_key(|word| word.abs_diff(wanted))
            .unwrap_or(to)
    }

    /// The most words that fit, but for [`SLACK`] tokens: interpolation between a number of words that fits and one
    /// that does not.
    fn fit(&self, tokenizer: &Tokenizer, plan: &Plan, length: usize) -> Result<usize> {
        let tokens = |words: usize| -> Result<usize> {
            let (context, question) = self.compose(plan, words);
            let whole = format!("{context}{question} {}.", plan.number);
            Ok(tokenizer.encode(&whole, true)?.len() + SPARE_TOKENS)
        };
        let (mut low, mut low_tokens) = (0, tokens(0)?);
        if low_tokens > length {
            let what = format!(
                "{length} tokens can't hold the question of `{}`; give at least {low_tokens}",
                self.wording.task
            );
            return Err(Error::setting("length", what));
        }
        let (mut high, mut high_tokens) = (length, tokens(length)?);
        if high_tokens <= length {
            return Ok(high);
        }
        while length - low_tokens > SLACK && high - low > 1 {
            let share = (length - low_tokens) as f64 / (high_tokens - low_tokens) as f64;
            let guess = low + ((high - low) as f64 * share) as usize;
            let words = guess.clamp(low + 1, high - 1);
            match tokens(words)? {
                fits if fits <= length => (low, low_tokens) = (words, fits),
                over => (high, high_tokens) = (words, over),
            }
        }
        Ok(low)
    }
}

/// Length of the common beginning of two token sequences.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}
