//! The metrics of InfiniteBench (arXiv 2402.13718).

use super::{number, rouge, text};

/// Signs that the published scripts replace by blanks.
const MARKS: [&str; 10] = ["\n", ":", "\"", "'", ".", ",", "?", "!", "{", "}"];

/// The metric of one of InfiniteBench's tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InfiniteBenchMetric {
    /// The first run of digits is the reference (passkey, number_string).
    FirstDigits,
    /// The reference is one of the words (kv_retrieval).
    OneOfWords,
    /// The first reference is one of the words in upper case (longdialogue_qa_eng).
    OneOfUpperWords,
    /// The first number equals the reference (math_find).
    FirstNumber,
    /// The option that the answer begins with or names (longbook_choice_eng).
    Choice,
    /// Token F1, best of the references (longbook_qa_eng).
    QaF1,
    /// Character F1, best of the references (longbook_qa_chn).
    CharacterF1,
    /// ROUGE-Lsum (longbook_sum_eng).
    RougeLsum,
    /// The last word is the reference, an integer (code_run).
    LastInteger,
    /// The option or the function that the answer begins with or names (code_debug).
    CodeDebug,
    /// Share of the references, in order, up to the first that is wrong (math_calc).
    NumbersInOrder,
}

impl InfiniteBenchMetric {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::FirstDigits,
        Self::OneOfWords,
        Self::OneOfUpperWords,
        Self::FirstNumber,
        Self::Choice,
        Self::QaF1,
        Self::CharacterF1,
        Self::RougeLsum,
        Self::LastInteger,
        Self::CodeDebug,
        Self::NumbersInOrder,
    ];

    /// Score of `prediction`.
    pub fn score(self, prediction: &str, references: &[String]) -> f64 {
        let Some(first) = references.first() else { return 0.0 };
        let best = |f: fn(&str, &str) -> f64| references.iter().map(|r| f(prediction, r)).fold(0.0, f64::max);
        let spaced = || text::blanked(prediction, &MARKS);
        match self {
            Self::FirstDigits => f64::from(text::digit_runs(prediction).next() == Some(first)),
            Self::OneOfWords => f64::from(spaced().split_whitespace().any(|word| word == first)),
            Self::OneOfUpperWords => {
                f64::from(spaced().split_whitespace().any(|w| w.to_uppercase() == *first))
            }
            Self::FirstNumber => f64::from(first_number(prediction, first)),
            Self::Choice => f64::from(choice(prediction, references)),
            Self::QaF1 => best(text::qa_f1),
            Self::CharacterF1 => best(text::character_f1),
            Self::RougeLsum => best(rouge::rouge_lsum),
            Self::LastInteger => f64::from(last_integer(prediction, first)),
            Self::CodeDebug => f64::from(code_debug(prediction, references)),
            Self::NumbersInOrder => numbers_in_order(prediction, references),
        }
    }

    /// Unit of the mean score.
    pub fn unit(self) -> &'static str {
        match self {
            Self::QaF1 => "token F1",
            Self::CharacterF1 => "character F1",
            Self::RougeLsum => "ROUGE-Lsum F",
            Self::NumbersInOrder => "share of references",
            _ => "share of samples",
        }
    }
}

/// A whole number is compared with whole numbers only.
fn first_number(prediction: &str, gold: &str) -> bool {
    let Some(found) = number::first_number(prediction) else { return false };
    if gold.contains(['.', 'e', 'E']) {
        return found.parse::<f64>().is_ok_and(|found| gold.parse() == Ok(found));
    }
    number::same_integer(found, gold)
}

/// What follows the first of `leads` that the text has, one character later: `Some("")` if nothing follows.
fn behind<'a>(text: &'a str, leads: &[&str]) -> Option<&'a str> {
    let lead = leads.iter().find(|lead| text.contains(*lead))?;
    let rest = &text[text.find(lead)? + lead.len()..];
    let mut characters = rest.chars();
    characters.next();
    Some(characters.as_str())
}

fn single_blanks(mut text: String) -> String {
    while text.contains("  ") {
        text = text.replace("  ", " ");
    }
    text
}

fn choice(prediction: &str, labels: &[String]) -> bool {
    let is_label = |text: &str| labels.iter().any(|label| label == text);
    let Some(first) = prediction.chars().next() else { return false };
    if ('A'..='D').contains(&first) {
        return is_label(&first.to_string());
    }
    let marks: Vec<&str> = MARKS.iter().copied().filter(|mark| *mark != ":").collect();
    let spaced = single_blanks(text::blanked(prediction, &marks));
    if let Some(rest) = behind(&spaced, &["answer is:", "answer:", "answer is", "option is"]) {
        return labels.iter().any(|label| rest.starts_with(label.as_str()));
    }
    // The script takes any piece of "ABCD" for a letter.
    spaced.split_whitespace().find(|word| "ABCD".contains(word)).is_some_and(is_label)
}

fn code_debug(prediction: &str, references: &[String]) -> bool {
    let [function, option, ..] = references else { return false };
    if [".", ":"].iter().any(|end| prediction.starts_with(&format!("{option}{end}"))) {
        return true;
    }
    let marks = ["\n", "`", "'", "\"", "-", "*", "Option", "option"];
    let spaced = single_blanks(text::blanked(prediction.trim(), &marks));
    behind(&spaced, &["answer is:", "is:", "answer:"])
        .is_some_and(|rest| rest.starts_with(option.as_str()) || rest.starts_with(function.as_str()))
}

fn last_integer(prediction: &str, gold: &str) -> bool {
    let spaced = text::blanked(prediction.trim(), &["\n", ".", "`", "'", "\"", ":"]);
    let integer = |text: &str| text.parse::<i128>().ok();
    let found = spaced.split_whitespace().next_back().and_then(integer);
    found.is_some() && found == integer(gold)
}

fn numbers_in_order(prediction: &str, references: &[String]) -> f64 {
    let right = text::digit_runs(prediction)
        .zip(references)
        .take_while(|(found, gold)| number::same_integer(found, gold))
        .count();
    right as f64 / references.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(metric: InfiniteBenchMetric, prediction: &str, references: &[&str]) -> f64 {
        let references: Vec<String> = references.iter().map(|&r| r.to_owned()).collect();
        metric.score(prediction, &references)
    }

    #[test]
    fn choices_are_read_as_published() {
        use InfiniteBenchMetric::Choice;
        let gold = ["Hall Farm", "B"];
        assert_eq!(score(Choice, "B. Hall Farm", &gold), 1.0);
        assert_eq!(score(Choice, "C", &gold), 0.0);
        assert_eq!(score(Choice, "the answer is: B", &gold), 1.0);
        assert_eq!(score(Choice, "the answer is Hall Farm.", &gold), 1.0);
        assert_eq!(score(Choice, "maybe 'B'", &gold), 1.0);
        assert_eq!(score(Choice, "the answer:", &gold), 0.0);
    }

    #[test]
    fn numbers_and_words_are_read_as_published() {
        use InfiniteBenchMetric as M;
        assert_eq!(score(M::FirstNumber, "it is 3.0", &["3"]), 0.0);
        assert_eq!(score(M::FirstNumber, "it is 3.0", &["3.0"]), 1.0);
        assert_eq!(score(M::NumbersInOrder, "1, 2, 4", &["1", "2", "3", "4"]), 0.5);
        assert_eq!(score(M::LastInteger, "f(3) returns: -12.", &["-12"]), 1.0);
        assert_eq!(score(M::CodeDebug, "The answer is: C", &["load", "C"]), 1.0);
        assert_eq!(score(M::CodeDebug, "C. load", &["load", "C"]), 1.0);
        assert_eq!(score(M::CodeDebug, "no idea", &["load", "C"]), 0.0);
        assert_eq!(score(M::OneOfUpperWords, "Ace Rothstein", &["ACE", "ACE ROTHSTEIN"]), 1.0);
    }
}
