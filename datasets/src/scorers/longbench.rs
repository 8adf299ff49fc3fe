//! The metrics of LongBench v1 (arXiv 2308.14508).

use super::{rouge, text};

/// One of LongBench's metrics. Every one is taken against each reference; the best counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LongBenchMetric {
    /// Token F1 of normalised English texts.
    QaF1,
    /// The same on the first line of the answer.
    QaF1FirstLine,
    /// F1 of normalised Chinese texts by characters. The benchmark's own script cuts words with jieba, so its numbers
    /// differ.
    CharacterF1,
    /// ROUGE-L.
    Rouge,
    /// ROUGE-L on the first line of the answer.
    RougeFirstLine,
    /// ROUGE-L by characters; as with [`Self::CharacterF1`] the benchmark's script cuts words.
    CharacterRouge,
    /// The gold class over the number of classes that the first line names.
    Classification,
    /// Share of the answer's numbers that are the gold paragraph's (`Paragraph 7`).
    Retrieval,
    /// The same for Chinese (`段落7`).
    RetrievalChinese,
    /// Share of the answer's numbers that are the gold one.
    Count,
    /// Similarity of the first line of code with the gold line.
    CodeSimilarity,
}

impl LongBenchMetric {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::QaF1,
        Self::QaF1FirstLine,
        Self::CharacterF1,
        Self::Rouge,
        Self::RougeFirstLine,
        Self::CharacterRouge,
        Self::Classification,
        Self::Retrieval,
        Self::RetrievalChinese,
        Self::Count,
        Self::CodeSimilarity,
    ];

    /// Best score over the references.
    pub fn score(self, prediction: &str, references: &[String], classes: &[String]) -> f64 {
        references.iter().map(|r| self.against(prediction, r, classes)).fold(0.0, f64::max)
    }

    fn against(self, prediction: &str, reference: &str, classes: &[String]) -> f64 {
        match self {
            Self::QaF1 => text::qa_f1(prediction, reference),
            Self::QaF1FirstLine => text::qa_f1(first_line(prediction), reference),
            Self::CharacterF1 => text::character_f1(prediction, reference),
            Self::Rouge => rouge::rouge_l(prediction, reference),
            Self::RougeFirstLine => rouge::rouge_l(first_line(prediction), reference),
            Self::CharacterRouge => rouge::rouge_l(&spaced(prediction), &spaced(reference)),
            Self::Classification => classification(first_line(prediction), reference, classes),
            Self::Retrieval => number_after(reference, "Paragraph ").map_or(0.0, |id| share(prediction, id)),
            Self::RetrievalChinese => number_after(reference, "段落").map_or(0.0, |id| share(prediction, id)),
            Self::Count => share(prediction, reference.trim()),
            Self::CodeSimilarity => text::similarity_percent(first_code_line(prediction), reference) / 100.0,
        }
    }

    /// Unit of the mean score.
    pub fn unit(self) -> &'static str {
        match self {
            Self::QaF1 | Self::QaF1FirstLine => "token F1",
            Self::CharacterF1 => "character F1",
            Self::Rouge | Self::RougeFirstLine => "ROUGE-L F",
            Self::CharacterRouge => "character ROUGE-L F",
            Self::Classification | Self::Retrieval | Self::RetrievalChinese | Self::Count => {
                "share of samples"
            }
            Self::CodeSimilarity => "similarity",
        }
    }
}

fn first_line(text: &str) -> &str {
    text.trim_start_matches('\n').split('\n').next().unwrap_or_default()
}

/// Characters as words, without white space.
fn spaced(text: &str) -> String {
    let characters: Vec<String> = text.chars().filter(|c| !c.is_whitespace()).map(String::from).collect();
    characters.join(" ")
}

/// The classes named in `prediction`, less those that are part of the gold one; the loop skips the class behind a
/// removed one, as the published script does.
fn classification(prediction: &str, gold: &str, classes: &[String]) -> f64 {
    let mut named: Vec<&str> =
        classes.iter().map(String::as_str).filter(|c| prediction.contains(c)).collect();
    let mut i = 0;
    while i < named.len() {
        let class = named[i];
        if gold.contains(class) && class != gold {
            named.retain({
                let mut gone = false;
                move |c| gone || *c != class || std::mem::replace(&mut gone, true)
            });
        }
        i += 1;
    }
    if named.contains(&gold) { 1.0 / named.len() as f64 } else { 0.0 }
}

/// The digits behind the first `lead` that has some.
fn number_after<'a>(text: &'a str, lead: &str) -> Option<&'a str> {
    text.match_indices(lead).find_map(|(at, _)| {
        let rest = &text[at + lead.len()..];
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        (end > 0).then(|| &rest[..end])
    })
}

/// Share of the numbers of `prediction` that are `gold`.
fn share(prediction: &str, gold: &str) -> f64 {
    let numbers: Vec<&str> = text::digit_runs(prediction).collect();
    let right = numbers.iter().filter(|n| **n == gold).count();
    if numbers.is_empty() { 0.0 } else { right as f64 / numbers.len() as f64 }
}

/// The first line without a mark of comments or fences; empty if there is none.
fn first_code_line(prediction: &str) -> &str {
    let mut lines = prediction.trim_start_matches('\n').split('\n');
    lines.find(|line| !line.contains(['`', '#']) && !line.contains("//")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(metric: LongBenchMetric, prediction: &str, gold: &str) -> f64 {
        let classes = ["Food", "Food item", "Other", "City"].map(str::to_owned);
        metric.score(prediction, &[gold.to_owned()], &classes)
    }

    #[test]
    fn classes_inside_the_gold_class_do_not_count() {
        assert_eq!(score(LongBenchMetric::Classification, "\nFood item\nCity", "Food item"), 1.0);
        assert_eq!(score(LongBenchMetric::Classification, "Food, City", "City"), 0.5);
        assert_eq!(score(LongBenchMetric::Classification, "none of them", "City"), 0.0);
    }

    #[test]
    fn numbers_are_shares() {
        assert_eq!(score(LongBenchMetric::Retrieval, "Paragraph 7 or 8", "Paragraph 7"), 0.5);
        assert_eq!(score(LongBenchMetric::RetrievalChinese, "段落17", "段落17"), 1.0);
        assert_eq!(score(LongBenchMetric::Count, "There are 12.", "12"), 1.0);
        assert_eq!(score(LongBenchMetric::Count, "none", "12"), 0.0);
    }

    #[test]
    fn code_is_compared_line_by_line() {
        let prediction = "\n# comment\n```\nreturn a + b\nmore";
        assert_eq!(score(LongBenchMetric::CodeSimilarity, prediction, "return a + b"), 1.0);
        assert_eq!(score(LongBenchMetric::CodeSimilarity, "return a - b", "return a + b"), 0.92);
        assert_eq!(score(LongBenchMetric::CodeSimilarity, "`x`", "return"), 0.0);
    }
}
