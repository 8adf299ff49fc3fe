//! The nine tasks in nano's language: their facts, their questions and how many facts a document holds.

use super::{
    document::{Content, Fact, Question},
    lexicon::{Class, Lexicon, Pattern, prime_at_most},
};
use crate::draw::Draw;
use oasis_core::{Error, Result};
use std::collections::HashSet;

/// One task of the grammar.
pub(crate) struct Spec {
    /// Name in the table.
    pub name: &'static str,
    /// Pattern of a fact.
    pub fact: &'static str,
    /// Pattern of the question with the beginning of its answer.
    pub ask: &'static str,
    /// Most tokens of one unit: a fact, or all facts of one owner or one chain.
    pub unit: usize,
    /// Most tokens of an answer, end of text included.
    pub answer: usize,
    /// Units in a document of so many tokens.
    pub count: fn(usize) -> usize,
    /// Fewest units that make a question.
    pub least: usize,
    /// Most units that can have keys of their own.
    pub most: fn(&Lexicon<'_>) -> usize,
    /// Questions that so many units can be asked.
    pub askable: fn(usize) -> usize,
    /// Score of a guess.
    pub chance: f64,
    /// Draws `count` units and the first `questions` questions about them.
    make: fn(&Kit<'_>, &mut Draw, usize, usize) -> Result<Content>,
}

const ANSWER_OF_DIGITS: f64 = 1e-3;

/// All of them, in the order of the table.
pub(crate) const SPECS: [Spec; 9] = [
    Spec {
        name: "niah_single",
        fact: "the secret code for A N is D D D .",
        ask: "question : what is the secret code for A N ? answer : the secret code for A N is",
        unit: 11,
        answer: 4,
        count: |_| 1,
        least: 1,
        most: pairs,
        askable: |_| 1,
        chance: ANSWER_OF_DIGITS,
        make: codes,
    },
    Spec {
        name: "niah_multikey",
        fact: "the secret code for A N is D D D .",
        ask: "question : what is the secret code for A N ? answer : the secret code for A N is",
        unit: 11,
        answer: 4,
        count: |length| length / 64,
        least: 1,
        most: pairs,
        askable: |units| units,
        chance: ANSWER_OF_DIGITS,
        make: codes,
    },
    Spec {
        name: "niah_multivalue",
        fact: "M owns the O .",
        ask: "question : what does M own ? answer : M owns the",
        unit: 20,
        answer: 5,
        count: |length| (length / 128).min(64),
        least: 1,
        most: |lexicon| lexicon.class(Class::Name).keys() as usize,
        askable: |units| units,
        chance: 0.0,
        make: possessions,
    },
    Spec {
        name: "niah_multiquery",
        fact: "M lives in C .",
        ask: "question : where do M M M live ? answer :",
        unit: 5,
        answer: 4,
        count: |length| (length / 32).min(120),
        least: 3,
        most: |lexicon| lexicon.class(Class::Name).keys() as usize,
        askable: |units| units / 3,
        chance: 0.0,
        make: homes,
    },
    Spec {
        name: "kv",
        fact: "A N : D D D ;",
        ask: "question : value of A N ? answer : A N :",
        unit: 7,
        answer: 4,
        count: |length| length.saturating_sub(40) * 4 / 35,
        least: 1,
        most: pairs,
        askable: |units| units,
        chance: ANSWER_OF_DIGITS,
        make: codes,
    },
    Spec {
        name: "vt",
        fact: "var X = D D ;",
        ask: "question : value of X ? answer : X =",
        unit: 26,
        answer: 3,
        count: |length| (length / 256).clamp(2, 12),
        least: 2,
        most: |lexicon| lexicon.variables.keys() as usize / CHAIN,
        askable: |units| units,
        chance: 1e-2,
        make: values,
    },
    Spec {
        name: "vt_trace",
        fact: "var X = D D ;",
        ask: "question : trace of X ? answer : X",
        unit: 26,
        answer: 7,
        count: |length| (length / 256).clamp(2, 12),
        least: 2,
        most: |lexicon| lexicon.variables.keys() as usize / CHAIN,
        askable: |units| units,
        chance: 0.0,
        make: traces,
    },
    Spec {
        name: "copy",
        fact: "note : W W W W W W W W .",
        ask: "question : repeat the note W W ? answer : note : W W",
        unit: 11,
        answer: 7,
        count: |length| length / 64,
        least: 1,
        most: |lexicon| (lexicon.content().len as usize).pow(2) / 2,
        askable: |units| units,
        chance: 0.0,
        make: notes,
    },
    Spec {
        name: "cwe",
        fact: "words : W W W W W W W W ;",
        ask: "question : which word is most common ? answer :",
        unit: 11,
        answer: 2,
        count: |length| length / 64,
        least: 4,
        most: |_| usize::MAX,
        askable: |_| 1,
        chance: 1e-3,
        make: lists,
    },
];

/// Variables of the longest chain: the one with the value and four links.
const CHAIN: usize = 5;
/// Further sentence of a chain: a variable that has the value of another.
const LINK: &str = "var X = X ;";
/// Different words of the lists of `cwe`, and the share of the most common one.
const LIST_WORDS: usize = 25;
const COMMON: f64 = 0.3;

impl Spec {
    /// Tokens that a document needs at most besides filler; `None` if it would hold too few units.
    pub fn needs(&self, length: usize) -> Option<usize> {
        let units = (self.count)(length);
        let question = self.ask.split(' ').count() + self.answer;
        (units >= self.least).then(|| 1 + units.saturating_mul(self.unit) + question)
    }

    /// The smallest length that holds the task.
    pub fn smallest(&self) -> usize {
        (1..=4096).find(|&length| self.needs(length).is_some_and(|n| n <= length)).unwrap_or(4096)
    }
}

/// A task's patterns, compiled for one tokenizer.
pub(crate) struct Kit<'a> {
    spec: &'static Spec,
    lexicon: &'a Lexicon<'a>,
    fact: Pattern,
    link: Pattern,
    ask: Pattern,
}

impl<'a> Kit<'a> {
    /// Compiles the patterns of `spec`.
    pub fn new(spec: &'static Spec, lexicon: &'a Lexicon<'a>) -> Result<Self> {
        let (fact, link) = (lexicon.pattern(spec.fact)?, lexicon.pattern(LINK)?);
        Ok(Self { spec, lexicon, fact, link, ask: lexicon.pattern(spec.ask)? })
    }

    /// The facts of a document of `length` tokens and its first `questions` questions.
    pub fn content(&self, length: usize, questions: usize, draw: &mut Draw) -> Result<Content> {
        (self.spec.make)(self, draw, (self.spec.count)(length), questions)
    }

    fn digits(&self, count: usize, draw: &mut Draw) -> Vec<u32> {
        let digits = self.lexicon.digits;
        (0..count).map(|_| digits.start + draw.below(digits.len)).collect()
    }

    fn word(&self, class: Class, number: u32) -> u32 {
        self.lexicon.class(class).start + number
    }

    fn question(&self, words: &[u32], mut answer: Vec<u32>) -> Question {
        answer.push(self.lexicon.eos);
        Question { prompt: self.ask.fill(words), answer }
    }

    /// A fact at a uniformly random place.
    fn anywhere(&self, words: &[u32], draw: &mut Draw) -> Fact {
        Fact { at: draw.unit(), tokens: self.fact.fill(words) }
    }
}

/// Adjective-noun pairs that can be keys.
fn pairs(lexicon: &Lexicon<'_>) -> usize {
    prime_at_most(lexicon.class(Class::Adjective).len * lexicon.class(Class::Noun).len) as usize
}

/// `count` places in ascending order.
fn places(count: usize, draw: &mut Draw) -> Vec<f64> {
    let mut places: Vec<f64> = (0..count).map(|_| draw.unit()).collect();
    places.sort_by(f64::total_cmp);
    places
}

/// Secret codes and key-value pairs: an adjective, a noun, three digits.
fn codes(kit: &Kit<'_>, draw: &mut Draw, count: usize, questions: usize) -> Result<Content> {
    let nouns = kit.lexicon.class(Class::Noun).len;
    let keys = draw.distinct(pairs(kit.lexicon) as u32, count);
    // The question of a secret code says the key twice, as that of a key-value pair does.
    let mut content = Content { facts: Vec::with_capacity(count), questions: Vec::new() };
    for (unit, key) in keys.into_iter().enumerate() {
        let key = [kit.word(Class::Adjective, key / nouns), kit.word(Class::Noun, key % nouns)];
        let code = kit.digits(3, draw);
        content.facts.push(kit.anywhere(&[&key[..], &code].concat(), draw));
        if unit < questions {
            content.questions.push(kit.question(&[key, key].concat(), code));
        }
    }
    Ok(content)
}

/// Two to four items that one name owns, told apart from one another and answered in order of appearance.
fn possessions(kit: &Kit<'_>, draw: &mut Draw, count: usize, questions: usize) -> Result<Content> {
    let names = draw.distinct(kit.lexicon.class(Class::Name).keys(), count);
    let mut content = Content { facts: Vec::new(), questions: Vec::new() };
    for (unit, name) in names.into_iter().enumerate() {
        let name = kit.word(Class::Name, name);
        let number = 2 + draw.index(3);
        let items = draw.distinct(kit.lexicon.class(Class::Item).keys(), number);
        let items: Vec<u32> = items.into_iter().map(|item| kit.word(Class::Item, item)).collect();
        for (at, item) in places(number, draw).into_iter().zip(&items) {
            content.facts.push(Fact { at, tokens: kit.fact.fill(&[name, *item]) });
        }
        if unit < questions {
            content.questions.push(kit.question(&[name, name], items));
        }
    }
    Ok(content)
}

/// Where people live; three are asked for at once.
fn homes(kit: &Kit<'_>, draw: &mut Draw, count: usize, questions: usize) -> Result<Content> {
    let names = draw.distinct(kit.lexicon.class(Class::Name).keys(), count);
    let names: Vec<u32> = names.into_iter().map(|name| kit.word(Class::Name, name)).collect();
    let city_count = kit.lexicon.class(Class::City).len;
    let cities: Vec<u32> = names.iter().map(|_| kit.word(Class::City, draw.below(city_count))).collect();
    let facts = names.iter().zip(&cities).map(|(&n, &c)| kit.anywhere(&[n, c], draw)).collect();
    let asked = names.chunks_exact(3).zip(cities.chunks_exact(3)).take(questions);
    let questions = asked.map(|(names, cities)| kit.question(names, cities.to_vec())).collect();
    Ok(Content { facts, questions })
}

/// A chain of variables: each has the value of the one before it, the first has a number.
struct Chain {
    variables: Vec<u32>,
    value: Vec<u32>,
}

/// Chains of two to four links, whose sentences keep their order.
fn chains(kit: &Kit<'_>, draw: &mut Draw, count: usize) -> (Vec<Fact>, Vec<Chain>) {
    let numbers = draw.distinct(kit.lexicon.variables.keys(), count * CHAIN);
    let (mut facts, mut chains) = (Vec::new(), Vec::with_capacity(count));
    for numbers in numbers.chunks_exact(CHAIN) {
        let links = 2 + draw.index(3);
        let variables: Vec<u32> = numbers[..=links].iter().map(|n| kit.lexicon.variables.start + n).collect();
        let value = kit.digits(2, draw);
        let places = places(links + 1, draw);
        facts.push(Fact { at: places[0], tokens: kit.fact.fill(&[&variables[..1], &value].concat()) });
        for (pair, at) in variables.windows(2).zip(&places[1..]) {
            facts.push(Fact { at: *at, tokens: kit.link.fill(&[pair[1], pair[0]]) });
        }
        chains.push(Chain { variables, value });
    }
    (facts, chains)
}

/// The value of the last variable of a chain.
fn values(kit: &Kit<'_>, draw: &mut Draw, count: usize, questions: usize) -> Result<Content> {
    let (facts, chains) = chains(kit, draw, count);
    let ask = |Chain { variables, value }: Chain| {
        let asked = variables[variables.len() - 1];
        kit.question(&[asked, asked], value)
    };
    Ok(Content { facts, questions: chains.into_iter().take(questions).map(ask).collect() })
}

/// The way from the last variable of a chain to the first, and the value.
fn traces(kit: &Kit<'_>, draw: &mut Draw, count: usize, questions: usize) -> Result<Content> {
    let (facts, chains) = chains(kit, draw, count);
    let ask = |Chain { mut variables, value }: Chain| {
        variables.reverse();
        let answer = [&variables[1..], &value].concat();
        kit.question(&[variables[0], variables[0]], answer)
    };
    Ok(Content { facts, questions: chains.into_iter().take(questions).map(ask).collect() })
}

/// Notes of eight random words, repeated from the third word on. No two notes begin with the same two words.
fn notes(kit: &Kit<'_>, draw: &mut Draw, count: usize, questions: usize) -> Result<Content> {
    let content = kit.lexicon.content();
    let mut begun = HashSet::new();
    let mut notes: Vec<Vec<u32>> = Vec::with_capacity(count);
    while notes.len() < count {
        let note: Vec<u32> = (0..8).map(|_| content.start + draw.below(content.len)).collect();
        if begun.insert((note[0], note[1])) {
            notes.push(note);
        }
    }
    let facts = notes.iter().map(|note| kit.anywhere(note, draw)).collect();
    let ask = |note: &Vec<u32>| kit.question(&[&note[..2], &note[..2]].concat(), note[2..].to_vec());
    Ok(Content { facts, questions: notes.iter().take(questions).map(ask).collect() })
}

/// Lists of words among which one is by far the most common.
fn lists(kit: &Kit<'_>, draw: &mut Draw, count: usize, questions: usize) -> Result<Content> {
    let content = kit.lexicon.content();
    let words = draw.distinct(content.keys(), LIST_WORDS);
    // The common word is expected more than seven times as often as any other; a tie is rare at 32 words
    // and unheard of at more.
    for _ in 0..1000 {
        let picks: Vec<usize> = (0..8 * count)
            .map(|_| if draw.unit() < COMMON { 0 } else { 1 + draw.index(LIST_WORDS - 1) })
            .collect();
        let mut times = [0usize; LIST_WORDS];
        picks.iter().for_each(|&pick| times[pick] += 1);
        if times[1..].iter().all(|&n| n < times[0]) {
            let list: Vec<u32> = picks.iter().map(|&pick| content.start + words[pick]).collect();
            let facts = list.chunks(8).map(|list| kit.anywhere(list, draw)).collect();
            let question = kit.question(&[], vec![content.start + words[0]]);
            return Ok(Content { facts, questions: vec![question; questions.min(1)] });
        }
    }
    Err(Error::Invariant(format!("cwe: no clear winner among {count} lists in 1,000 attempts")))
}
