//! `ruler-like`: the thirteen task types of RULER (arXiv 2404.06654), generated for any tokenizer and length.
//!
//! Rules, sizes and scores are RULER's; the random numbers, the word lists, the prose and the wording are our own, so
//! scores are like RULER's and not RULER's. For those, import RULER's own files with the task `ruler_upstream`.
//!
//! Each sample has a seed of its own, and holds as much filler as its length allows.

mod chain;
mod encoder;
mod lists;
mod niah;
mod qa;
mod recipe;
mod shared;
#[cfg(test)]
mod tests;
mod words;

use crate::{
    draw::Draw,
    files::{self, DataFile},
    loaders::settings::{self, DATA, SHA256},
    prompt::{self, Frame, MAX_NEW_TOKENS, Made, Parts, TEMPLATE, Template},
    prose::{self, Prose},
    scorers::Scorer,
    task::{Sample, Scoring, Task, hex, sample_seed},
};
use encoder::Encoder;
use niah::{Haystack, Item, Niah, Shape};
use oasis_core::{
    Error, Result,
    registry::{Param, Params},
    text::Tokenizer,
};
use qa::{Answering, Library};
use rayon::prelude::*;
use recipe::{Recipe, Sized};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use shared::Shared;
use std::path::PathBuf;
use words::Keys;

/// Version of the samples and of the scorers.
pub(crate) const VERSION: u32 = 1;
/// Share of the length that prompt and answer must reach, unless one more unit of filler would overflow it.
const FILL: f64 = 0.95;

const TEXT: Param = Param {
    name: "text",
    about: "path of a UTF-8 text that makes the haystack",
    default: "the bundled novel",
};

/// Parameters of tasks without data.
pub(crate) const PARAMS: &[Param] = &[TEMPLATE, MAX_NEW_TOKENS];
/// Parameters of tasks on prose.
pub(crate) const PROSE_PARAMS: &[Param] = &[TEXT, TEMPLATE, MAX_NEW_TOKENS];
/// Parameters of question answering.
pub(crate) const QA_PARAMS: &[Param] = &[DATA, SHA256, TEMPLATE, MAX_NEW_TOKENS];

/// One of the thirteen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Niah(Shape),
    Tracking,
    CommonWords,
    FrequentWords,
    Squad,
    Hotpot,
}

/// A task type and the tokens that its answer gets.
pub(crate) struct Spec {
    pub name: &'static str,
    pub kind: Kind,
    pub answer: usize,
}

const fn niah(
    name: &'static str,
    haystack: Haystack,
    (key, value): (Item, Item),
    (keys, values, queries): (usize, usize, usize),
) -> Spec {
    Spec { name, kind: Kind::Niah(Shape { haystack, key, value, keys, values, queries }), answer: 128 }
}

use Haystack::{Essay, Needles, Noise};
use Item::{Number, Uuid, Words};

/// The thirteen task types.
pub(crate) static SPECS: [Spec; 13] = [
    niah("ruler_niah_single_1", Noise, (Words, Number), (1, 1, 1)),
    niah("ruler_niah_single_2", Essay, (Words, Number), (1, 1, 1)),
    niah("ruler_niah_single_3", Essay, (Words, Uuid), (1, 1, 1)),
    niah("ruler_niah_multikey_1", Essay, (Words, Number), (4, 1, 1)),
    niah("ruler_niah_multikey_2", Needles, (Words, Number), (1, 1, 1)),
    niah("ruler_niah_multikey_3", Needles, (Uuid, Uuid), (1, 1, 1)),
    niah("ruler_niah_multivalue", Essay, (Words, Number), (1, 4, 1)),
    niah("ruler_niah_multiquery", Essay, (Words, Number), (4, 1, 4)),
    Spec { name: "ruler_vt", kind: Kind::Tracking, answer: 30 },
    Spec { name: "ruler_cwe", kind: Kind::CommonWords, answer: 120 },
    Spec { name: "ruler_fwe", kind: Kind::FrequentWords, answer: 50 },
    Spec { name: "ruler_qa_1", kind: Kind::Squad, answer: 32 },
    Spec { name: "ruler_qa_2", kind: Kind::Hotpot, answer: 32 },
];

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    text: Option<PathBuf>,
    data: Option<PathBuf>,
    sha256: Option<String>,
    template: Template,
    max_new_tokens: Option<usize>,
}

/// A task of the thirteen with its texts.
struct Ruler {
    spec: &'static Spec,
    template: Template,
    answer: usize,
    keys: Keys,
    prose: Prose,
    vocabulary: Vec<String>,
    library: Library,
    files: Vec<DataFile>,
    sha256: Option<String>,
}

/// Builds the task called `name`: reads its text or its questions.
pub(crate) fn build(name: &'static str, known: &[Param], params: &Params) -> Result<Box<dyn Task>> {
    let spec = SPECS
        .iter()
        .find(|spec| spec.name == name)
        .ok_or_else(|| Error::unknown_name("task", name, SPECS.iter().map(|spec| spec.name)))?;
    settings::check_keys(name, params, known)?;
    let options: Options = params.parse(name)?;
    let answer = settings::answer_tokens(name, options.max_new_tokens, spec.answer)?;
    let mut task = Ruler {
        spec,
        template: options.template,
        answer,
        keys: Keys::new(),
        prose: Prose::new(String::new()),
        vocabulary: Vec::new(),
        library: Library::default(),
        files: Vec::new(),
        sha256: None,
    };
    match spec.kind {
        Kind::Niah(Shape { haystack: Essay, .. }) | Kind::CommonWords => task.read_prose(&options)?,
        Kind::Squad | Kind::Hotpot => task.read_questions(&options)?,
        Kind::Niah(_) | Kind::Tracking | Kind::FrequentWords => {}
    }
    Ok(Box::new(task))
}

impl Ruler {
    fn read_prose(&mut self, options: &Options) -> Result<()> {
        let text = prose::read(options.text.as_deref())?;
        self.sha256 = Some(hex(&Sha256::digest(&text)));
        self.prose = Prose::unwrapped(&text);
        if self.prose.len() == 0 {
            let what = "the text has no words; give one with sentences";
            return Err(Error::setting(format!("{}.text", self.spec.name), what));
        }
        self.vocabulary = words::vocabulary(&self.keys, &self.prose);
        Ok(())
    }

    fn read_questions(&mut self, options: &Options) -> Result<()> {
        let (origin, parse): (_, fn(&std::path::Path, &str) -> Result<Library>) = match self.spec.kind {
            Kind::Hotpot => (&qa::HOTPOT, Library::hotpot),
            _ => (&qa::SQUAD, Library::squad),
        };
        let key = (self.spec.name, "data");
        let (text, file) = files::read(key, options.data.as_deref(), origin, options.sha256.as_deref())?;
        self.library = parse(&file.path, &text)?;
        self.sha256 = Some(file.sha256.clone());
        self.files.push(file);
        Ok(())
    }

    /// The recipe of one sample.
    fn recipe<'a>(
        &'a self,
        shared: &'a Shared<'a>,
        index: usize,
        frame: &Frame,
        encoder: &mut Encoder<'_>,
        draw: &mut Draw,
    ) -> Result<Box<dyn Recipe + 'a>> {
        Ok(match self.spec.kind {
            Kind::Niah(shape) => Box::new(Niah::new(shared, shape, encoder, draw)?),
            Kind::Tracking => Box::new(chain::Tracking::new(shared, draw)),
            Kind::CommonWords => Box::new(lists::CommonWords::new(shared, encoder, draw)?),
            Kind::FrequentWords => Box::new(lists::FrequentWords::new(shared, encoder, draw)?),
            Kind::Squad | Kind::Hotpot => {
                let key = (self.spec.name, index);
                Box::new(Answering::new(shared, &self.library, key, frame, encoder, draw)?)
            }
        })
    }

    fn sample(
        &self,
        shared: &Shared<'_>,
        frame: &Frame,
        encoder: &mut Encoder<'_>,
        (index, seed): (usize, u64),
    ) -> Result<(Sample, Parts)> {
        let (name, length) = (self.spec.name, shared.length);
        let seed = sample_seed(seed, name, length, index);
        let recipe = self.recipe(shared, index, frame, encoder, &mut Draw::new(seed))?;
        let Sized { tokens, parts, next } =
            recipe::size(recipe.as_ref(), encoder, frame, name, (length, self.answer))?;
        if let Some(gone) = recipe.present().iter().find(|r| !parts.context.contains(r.as_str())) {
            let what = format!("`{name}`, sample {index}: the context lacks its answer `{gone}`");
            return Err(Error::Invariant(what));
        }
        let unused = length - self.answer - tokens.ids.len();
        if !recipe.tight() && next.is_none_or(|next| next <= unused) {
            self.check_fill(length - unused, length)?;
        }
        let made = Made {
            task: name,
            length,
            index,
            seed,
            answer: encoder.ids(&recipe.answer())?,
            references: recipe.references().to_vec(),
            choices: Vec::new(),
            max_new_tokens: self.answer,
        };
        Ok((prompt::sample(tokens, made), parts))
    }

    /// Refuses to leave more than 5 % of the length unused for want of filler.
    fn check_fill(&self, used: usize, length: usize) -> Result<()> {
        if used as f64 >= FILL * length as f64 {
            return Ok(());
        }
        let what = format!(
            "`{}` fills {used} of {length} tokens, and has no filler left; give more data or a length of at most {}",
            self.spec.name,
            (used as f64 / FILL) as usize
        );
        Err(Error::setting("length", what))
    }
}

impl Task for Ruler {
    fn name(&self) -> &str {
        self.spec.name
    }

    fn version(&self) -> u32 {
        VERSION
    }

    fn scoring(&self) -> Scoring {
        Scoring::Text(match self.spec.kind {
            Kind::Squad | Kind::Hotpot => Scorer::AnyReference,
            _ => Scorer::EveryReference,
        })
    }

    fn chance(&self) -> f64 {
        0.0
    }

    fn data_sha256(&self) -> Option<&str> {
        self.sha256.as_deref()
    }

    fn files(&self) -> &[DataFile] {
        &self.files
    }

    fn samples(&self, tokenizer: &Tokenizer, length: usize, n: usize, seed: u64) -> Result<Vec<Sample>> {
        if n == 0 {
            return Ok(Vec::new());
        }
        let frame = Frame::new(tokenizer, self.template)?;
        let mut encoder = Encoder::new(tokenizer, self.spec.name, false);
        let mut shared = Shared {
            length,
            room: length.saturating_sub(self.answer),
            keys: &self.keys,
            prose: &self.prose,
            vocabulary: &self.vocabulary,
            essay: Vec::new(),
            noise: [0; 5],
        };
        let essay = matches!(self.spec.kind, Kind::Niah(Shape { haystack: Essay, .. }));
        shared.count(&mut encoder, essay)?;
        // The first sample decides for all whether pieces add up to wholes, so that none depends on how many there are.
        let (mut first, parts) = self.sample(&shared, &frame, &mut encoder, (0, seed))?;
        encoder.probe(&frame.write(&parts))?;
        if encoder.is_whole() {
            (first, _) = self.sample(&shared, &frame, &mut encoder, (0, seed))?;
        }
        let rest: Vec<usize> = (1..n).collect();
        let chunk = rest.len().div_ceil(rayon::current_num_threads()).max(1);
        let rest = rest.par_chunks(chunk).map_with(encoder, |encoder, indices| {
            let one = |&index| Ok(self.sample(&shared, &frame, encoder, (index, seed))?.0);
            indices.iter().map(one).collect::<Result<Vec<_>>>()
        });
        let rest: Vec<Vec<Sample>> = rest.collect::<Result<_>>()?;
        Ok(std::iter::once(first).chain(rest.into_iter().flatten()).collect())
    }
}
