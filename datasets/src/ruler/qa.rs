//! Questions on documents: `qa_1` (SQuAD 2.0) and `qa_2` (HotpotQA).

use super::{
    encoder::Encoder,
    recipe::Recipe,
    shared::{Shared, prefix},
};
use crate::{
    draw::Draw,
    files::{self, Origin},
    prompt::{Frame, Parts},
};
use oasis_core::{Error, Result};
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

/// SQuAD's development set.
pub(crate) const SQUAD: Origin = Origin {
    what: "SQuAD 2.0's dev-v2.0.json",
    url: "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json",
    sha256: Some("80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8"),
};
/// HotpotQA's development set with distractors.
pub(crate) const HOTPOT: Origin = Origin {
    what: "HotpotQA's hotpot_dev_distractor_v1.json",
    url: "http://curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json (or https://huggingface.co/datasets/hotpotqa/hotpot_qa, as JSON)",
    sha256: None,
};

/// Documents that are tried for a gap before it counts as filled.
const PATIENCE: usize = 400;

/// Questions and the documents that they are asked on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Library {
    documents: Vec<String>,
    questions: Vec<Question>,
}

#[derive(Debug, Clone)]
struct Question {
    text: String,
    answers: Vec<String>,
    /// Documents that must be there.
    gold: Vec<usize>,
    /// Documents of the same article, which come next.
    more: Vec<usize>,
}

#[derive(Deserialize)]
struct Squad {
    data: Vec<SquadArticle>,
}

#[derive(Deserialize)]
struct SquadArticle {
    paragraphs: Vec<SquadParagraph>,
}

#[derive(Deserialize)]
struct SquadParagraph {
    context: String,
    qas: Vec<SquadQuestion>,
}

#[derive(Deserialize)]
struct SquadQuestion {
    question: String,
    #[serde(default)]
    is_impossible: bool,
    #[serde(default)]
    answers: Vec<SquadAnswer>,
}

#[derive(Deserialize)]
struct SquadAnswer {
    text: String,
}

#[derive(Deserialize)]
struct HotpotQuestion {
    question: String,
    answer: String,
    context: Vec<(String, Vec<String>)>,
}

/// Documents by text, each once.
#[derive(Default)]
struct Shelf(BTreeMap<String, usize>);

impl Shelf {
    fn number(&mut self, text: String) -> usize {
        let next = self.0.len();
        *self.0.entry(text).or_insert(next)
    }

    fn documents(self) -> Vec<String> {
        let mut documents = vec![String::new(); self.0.len()];
        for (text, i) in self.0 {
            documents[i] = text;
        }
        documents
    }
}

impl Library {
    /// SQuAD 2.0, questions with an answer only.
    pub fn squad(path: &Path, text: &str) -> Result<Self> {
        let squad: Squad = files::json(path, text)?;
        let mut shelf = Shelf::default();
        let mut questions = Vec::new();
        for article in squad.data {
            let numbers: Vec<usize> =
                article.paragraphs.iter().map(|p| shelf.number(p.context.clone())).collect();
            for (paragraph, &gold) in article.paragraphs.into_iter().zip(&numbers) {
                let more: Vec<usize> = numbers.iter().copied().filter(|&i| i != gold).collect();
                for q in paragraph.qas.into_iter().filter(|q| !q.is_impossible && !q.answers.is_empty()) {
                    let mut answers: Vec<String> = q.answers.into_iter().map(|a| a.text).collect();
                    let mut seen = HashSet::new();
                    answers.retain(|answer| seen.insert(answer.clone()));
                    questions.push(Question {
                        text: q.question,
                        answers,
                        gold: vec![gold],
                        more: more.clone(),
                    });
                }
            }
        }
        Self { documents: shelf.documents(), questions }.checked(path)
    }

    /// HotpotQA; every document of a question, distractors included, is there.
    pub fn hotpot(path: &Path, text: &str) -> Result<Self> {
        let records: Vec<HotpotQuestion> = files::json(path, text)?;
        let mut shelf = Shelf::default();
        let mut questions = Vec::new();
        for record in records {
            let document =
                |(title, sentences): (String, Vec<String>)| format!("{title}\n{}", sentences.concat());
            let gold = record.context.into_iter().map(|d| shelf.number(document(d))).collect();
            questions.push(Question {
                text: record.question,
                answers: vec![record.answer],
                gold,
                more: Vec::new(),
            });
        }
        Self { documents: shelf.documents(), questions }.checked(path)
    }

    fn checked(self, path: &Path) -> Result<Self> {
        if self.questions.is_empty() {
            return Err(Error::format(path, "holds no question with an answer; give the file as published"));
        }
        Ok(self)
    }

    /// How many questions there are.
    pub fn len(&self) -> usize {
        self.questions.len()
    }
}

/// One prompt.
pub(crate) struct Answering<'a> {
    library: &'a Library,
    question: &'a Question,
    /// Documents in the order in which they are taken, with a sort key for their place.
    taken: Vec<(usize, u64)>,
    sums: Vec<usize>,
    /// Documents were left that did not fit.
    tight: bool,
    /// Answers that the documents contain.
    present: Vec<String>,
}

const INSTRUCTION: &str =
    "Answer the question by the documents. Give the answer only, without any other words.";

impl<'a> Answering<'a> {
    /// Chooses the documents of question `index`.
    ///
    /// # Errors
    /// Fewer questions than that.
    pub fn new(
        shared: &Shared<'_>,
        library: &'a Library,
        (task, index): (&str, usize),
        frame: &Frame,
        encoder: &mut Encoder<'_>,
        draw: &mut Draw,
    ) -> Result<Self> {
        let question = library.questions.get(index).ok_or_else(|| {
            let n = library.len();
            Error::setting(
                format!("{task}.data"),
                format!("it has {n} questions, sample {index} needs one more; give at most {n} samples"),
            )
        })?;
        let mut this = Self {
            library,
            question,
            taken: Vec::new(),
            sums: Vec::new(),
            tight: false,
            present: Vec::new(),
        };
        this.taken = question.gold.iter().map(|&i| (i, draw.wide())).collect();
        let used = encoder.count(&frame.write(&this.parts(this.taken.len())).text)?;
        this.sums = prefix(vec![0; this.taken.len()]);
        this.fill(shared.room.saturating_sub(used), encoder, draw)?;
        let gold: Vec<&String> = question.gold.iter().map(|&i| &library.documents[i]).collect();
        let found = |answer: &&String| gold.iter().any(|document| document.contains(answer.as_str()));
        this.present = question.answers.iter().filter(found).cloned().collect();
        Ok(this)
    }

    /// Takes documents, those of the article first, as long as one of the next [`PATIENCE`] fits.
    fn fill(&mut self, room: usize, encoder: &mut Encoder<'_>, draw: &mut Draw) -> Result<()> {
        let mut more = self.question.more.clone();
        draw.shuffle(&mut more);
        let all = self.library.documents.len();
        let others = draw.distinct(all as u32, all).into_iter().map(|i| i as usize);
        let mut have: HashSet<usize> = self.taken.iter().map(|(i, _)| *i).collect();
        let (mut used, mut missed) = (0, 0);
        for i in more.into_iter().chain(others) {
            if missed > PATIENCE {
                break;
            }
            if have.contains(&i) {
                continue;
            }
            // "Document 123:" and the line ends around it.
            let tokens =
                encoder.count(&format!("\n\nDocument {}:\n{}", have.len() + 1, self.library.documents[i]))?
                    + 1;
            if used + tokens > room {
                missed += 1;
                continue;
            }
            used += tokens;
            have.insert(i);
            self.taken.push((i, draw.wide()));
            self.sums.push(used);
        }
        self.tight = missed > 0;
        Ok(())
    }
}

impl Recipe for Answering<'_> {
    fn least(&self) -> usize {
        self.question.gold.len()
    }

    fn most(&self) -> usize {
        self.taken.len()
    }

    fn extra(&self, units: usize) -> usize {
        self.sums[units]
    }

    fn parts(&self, units: usize) -> Parts {
        let mut order: Vec<(usize, u64)> = self.taken[..units].to_vec();
        order.sort_by_key(|(_, key)| *key);
        let documents: Vec<String> = order
            .iter()
            .enumerate()
            .map(|(n, (i, _))| format!("Document {}:\n{}", n + 1, self.library.documents[*i]))
            .collect();
        Parts {
            context: format!("{INSTRUCTION}\n\nThe documents follow.\n\n{}", documents.join("\n\n")),
            question: format!("\n\n{INSTRUCTION}\n\nQuestion: {}", self.question.text),
            lead: "\nAnswer:".to_owned(),
        }
    }

    fn references(&self) -> &[String] {
        &self.question.answers
    }

    fn answer(&self) -> String {
        format!(" {}", self.question.answers[0])
    }

    fn tight(&self) -> bool {
        self.tight
    }

    fn present(&self) -> &[String] {
        &self.present
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_both_kinds_are_read() {
        let squad = r#"{"data": [{"paragraphs": [
            {"context": "Ada wrote it.", "qas": [{"question": "Who?", "answers": [{"text": "Ada"}, {"text": "Ada"}]},
                                                 {"question": "Why?", "is_impossible": true, "answers": []}]},
            {"context": "It rained.", "qas": []}]}]}"#;
        let library = Library::squad(Path::new("s"), squad).unwrap();
        assert_eq!((library.len(), library.documents.len()), (1, 2));
        let question = &library.questions[0];
        assert_eq!((question.answers.as_slice(), &question.more[..]), (&["Ada".to_owned()][..], &[1][..]));
        let hotpot =
            r#"[{"question": "Q", "answer": "yes", "context": [["T", ["One.", " Two."]], ["U", ["x"]]]}]"#;
        let library = Library::hotpot(Path::new("h"), hotpot).unwrap();
        assert_eq!(library.documents, ["T\nOne. Two.", "U\nx"]);
        assert!(Library::hotpot(Path::new("h"), "[]").unwrap_err().to_string().contains("no question"));
        assert!(Library::squad(Path::new("s"), "[1]").is_err());
    }
}
