//! Reads documents back: an implementation of the grammar that shares only the patterns with the generator.

use crate::grammar::{
    facts::Spec,
    filler::forms,
    lexicon::{Class, Lexicon, Pattern, Slot},
};
use oasis_core::text::Tokenizer;
use std::collections::HashMap;

const LINK: &str = "var X = X ;";

/// A body taken apart.
#[derive(Default)]
pub(super) struct Body {
    /// Form and content words of each filler sentence.
    pub filler: Vec<(usize, Vec<(Class, u32)>)>,
    /// Words of the facts in order of appearance.
    pub facts: Vec<Vec<u32>>,
    /// Words of the links between variables.
    pub links: Vec<Vec<u32>>,
}

/// Reads documents by the sentence patterns.
pub(super) struct Reader<'a> {
    pub lexicon: Lexicon<'a>,
    forms: Vec<Pattern>,
    link: Pattern,
}

impl<'a> Reader<'a> {
    pub fn new(tokenizer: &'a Tokenizer) -> Self {
        let lexicon = Lexicon::new(tokenizer, "test").unwrap();
        Self { forms: forms(&lexicon).unwrap(), link: lexicon.pattern(LINK).unwrap(), lexicon }
    }

    /// The open slots' words, if `tokens` begin with the pattern.
    pub fn begins(&self, pattern: &Pattern, tokens: &[u32]) -> Option<Vec<u32>> {
        let tokens = tokens.get(..pattern.0.len())?;
        let mut words = Vec::new();
        for (slot, &id) in pattern.0.iter().zip(tokens) {
            let open = match slot {
                Slot::Fixed(fixed) if *fixed == id => continue,
                Slot::Fixed(_) => return None,
                Slot::Word(class) => self.lexicon.class(*class).position(id).is_some(),
                Slot::Free => [self.lexicon.digits, self.lexicon.variables, self.lexicon.content()]
                    .iter()
                    .any(|range| range.position(id).is_some()),
            };
            if !open {
                return None;
            }
            words.push(id);
        }
        Some(words)
    }

    /// Reads a body (with `<bos>`) from its first to its last token; `None` if any of it breaks the grammar.
    pub fn body(&self, spec: &Spec, tokens: &[u32]) -> Option<Body> {
        assert_eq!(tokens[0], self.lexicon.bos);
        // The first sentence is cropped: the longest form has 12 tokens.
        (1..13).find_map(|start| self.sentences(spec, tokens.get(start..)?))
    }

    fn sentences(&self, spec: &Spec, mut tokens: &[u32]) -> Option<Body> {
        let fact = self.lexicon.pattern(spec.fact).unwrap();
        let mut body = Body::default();
        while !tokens.is_empty() {
            let form =
                self.forms.iter().enumerate().find_map(|(i, form)| Some((i, self.begins(form, tokens)?)));
            let length = if let Some((i, words)) = form {
                let classes = self.forms[i].0.iter().filter_map(|slot| match slot {
                    Slot::Word(class) => Some(*class),
                    _ => None,
                });
                body.filler.push((i, classes.zip(words).collect()));
                self.forms[i].0.len()
            } else if let Some(words) = self.begins(&self.link, tokens).filter(|w| self.variables(w)) {
                body.links.push(words);
                self.link.0.len()
            } else {
                body.facts.push(self.begins(&fact, tokens)?);
                fact.0.len()
            };
            tokens = &tokens[length..];
        }
        Some(body)
    }

    fn variables(&self, words: &[u32]) -> bool {
        words.iter().all(|&word| self.lexicon.variables.position(word).is_some())
    }

    /// Answers the question from the body, by rules of its own.
    pub fn solve(&self, spec: &Spec, body: &Body, asked: &[u32]) -> Vec<u32> {
        let keyed = |n: usize| body.facts.iter().filter(move |f| f[..n] == asked[..n]).map(move |f| &f[n..]);
        let mut answer: Vec<u32> = match spec.name {
            "niah_multivalue" => keyed(1).flatten().copied().collect(),
            "niah_multiquery" => asked
                .iter()
                .flat_map(|a| body.facts.iter().filter(move |f| f[0] == *a))
                .map(|f| f[1])
                .collect(),
            "vt" | "vt_trace" => {
                let (mut at, mut way) = (asked[0], Vec::new());
                while let Some(link) = body.links.iter().find(|link| link[0] == at) {
                    at = link[1];
                    way.push(at);
                }
                let value = &body.facts.iter().find(|f| f[0] == at).unwrap()[1..];
                if spec.name == "vt" { value.to_vec() } else { [&way, value].concat() }
            }
            "cwe" => {
                let mut times: HashMap<u32, usize> = HashMap::new();
                body.facts.iter().flatten().for_each(|w| *times.entry(*w).or_default() += 1);
                let most = times.values().copied().max().unwrap();
                times.into_iter().filter(|(_, n)| *n == most).map(|(w, _)| w).collect()
            }
            _ => keyed(2).flatten().copied().collect(),
        };
        answer.push(self.lexicon.eos);
        answer
    }

    /// Tokens with every digit, variable and content word replaced by its kind.
    pub fn outline(&self, tokens: &[u32]) -> Vec<String> {
        tokens
            .iter()
            .map(|&id| {
                if self.lexicon.digits.position(id).is_some() {
                    "D".into()
                } else if self.lexicon.variables.position(id).is_some() {
                    "X".into()
                } else if self.lexicon.content().position(id).is_some() {
                    "W".into()
                } else {
                    id.to_string()
                }
            })
            .collect()
    }
}
