//! Tasks in the language of the bundled model.
//!
//! A document is `<bos>`, a body and a question with the beginning of its answer; the model gives the rest and
//! `<eos>`. The body is filler sentences with facts at random places among them. The rules are those of the
//! model's training documents (`bundled/nano/README.md`), so that dense accuracy is what its table says.

mod document;
mod facts;
mod filler;
mod lexicon;
#[cfg(test)]
mod tests;

use crate::{
    draw::Draw,
    task::{Sample, Scoring, Task, prompt_sha256, sample_seed},
};
use document::{Content, Question};
use facts::{Kit, SPECS, Spec};
use filler::{Filler, forms};
use lexicon::Lexicon;
use oasis_core::{
    Error, Result,
    registry::{Param, Params},
    text::Tokenizer,
};
use serde::Deserialize;

/// Version of the documents and of the scorer.
pub(crate) const VERSION: u32 = 1;

/// Parameters of every task of the grammar.
pub(crate) const PARAMS: &[Param] = &[Param {
    name: "questions",
    about: "samples that share one body and differ in the question; cwe and niah_single have one",
    default: "1",
}];

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    questions: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { questions: 1 }
    }
}

/// One task of the grammar.
struct GrammarTask {
    spec: &'static Spec,
    questions: usize,
}

/// Builds the task called `name`, one of [`SPECS`].
pub(crate) fn build(name: &'static str, params: &Params) -> Result<Box<dyn Task>> {
    let spec = SPECS
        .iter()
        .find(|spec| spec.name == name)
        .ok_or_else(|| Error::unknown_name("task", name, SPECS.iter().map(|spec| spec.name)))?;
    let Options { questions } = params.parse(name)?;
    if questions == 0 {
        return Err(Error::setting(format!("{name}.questions"), "0 samples share a body; give at least 1"));
    }
    Ok(Box::new(GrammarTask { spec, questions }))
}

impl Task for GrammarTask {
    fn name(&self) -> &str {
        self.spec.name
    }

    fn version(&self) -> u32 {
        VERSION
    }

    fn scoring(&self) -> Scoring {
        Scoring::Exact
    }

    fn chance(&self) -> f64 {
        self.spec.chance
    }

    fn samples(&self, tokenizer: &Tokenizer, length: usize, n: usize, seed: u64) -> Result<Vec<Sample>> {
        let lexicon = Lexicon::new(tokenizer, self.spec.name)?;
        self.check(&lexicon, length)?;
        let kit = Kit::new(self.spec, &lexicon)?;
        let forms = forms(&lexicon)?;
        let mut samples = Vec::with_capacity(n);
        for first in (0..n).step_by(self.questions) {
            let mut draw = Draw::new(sample_seed(seed, self.spec.name, length, first));
            let Content { facts, questions } = kit.content(length, self.questions, &mut draw)?;
            let longest = questions.iter().map(Question::len).max().unwrap_or(0);
            let filler = Filler::new(&lexicon, &forms, &mut draw);
            let body = document::body(facts, &filler, lexicon.bos, length - longest, &mut draw);
            for (i, question) in questions.into_iter().enumerate().take(n - first) {
                let sample = self.sample(&lexicon, length, (first, first + i), &body, question, seed)?;
                samples.push(sample);
            }
        }
        Ok(samples)
    }
}

impl GrammarTask {
    /// Refuses lengths that can't hold the task's facts and questions.
    fn check(&self, lexicon: &Lexicon<'_>, length: usize) -> Result<()> {
        let name = self.spec.name;
        if self.spec.needs(length).is_none_or(|needed| needed > length) {
            let smallest = self.spec.smallest();
            let what = format!("{length} tokens can't hold a document of `{name}`; give at least {smallest}");
            return Err(Error::setting("length", what));
        }
        let (units, most) = ((self.spec.count)(length), (self.spec.most)(lexicon));
        if units > most {
            let what = format!(
                "{length} tokens would hold {units} facts of `{name}`, and only {most} can have keys of their own; \
                 give a shorter length"
            );
            return Err(Error::setting("length", what));
        }
        let askable = (self.spec.askable)(units);
        if self.questions > askable {
            let what = format!(
                "{} questions on a body of `{name}` with {length} tokens, which has {askable}; give at most {askable}",
                self.questions
            );
            return Err(Error::setting(format!("{name}.questions"), what));
        }
        Ok(())
    }

    fn sample(
        &self,
        lexicon: &Lexicon<'_>,
        length: usize,
        (first, index): (usize, usize),
        body: &[u32],
        question: Question,
        seed: u64,
    ) -> Result<Sample> {
        let name = self.spec.name;
        let prompt = [body, &question.prompt].concat();
        let text = lexicon.text(&question.answer[..question.answer.len() - 1])?;
        Ok(Sample {
            id: format!("{name}-{length}-{index}"),
            task: name.to_owned(),
            index,
            seed: sample_seed(seed, name, length, index),
            question_at: body.len(),
            max_new_tokens: question.answer.len(),
            answer: question.answer,
            references: vec![text],
            choices: Vec::new(),
            cut: 0,
            prompt_sha256: prompt_sha256(&prompt),
            document: format!("{name}-{length}-{first}"),
            prompt,
        })
    }
}
