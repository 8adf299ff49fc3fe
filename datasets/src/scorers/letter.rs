//! Letters A to D in answers.

const LETTERS: [char; 4] = ['A', 'B', 'C', 'D'];

/// The letter of a GPQA answer: the forms that its authors' script reads, in their order, then `Answer: X`.
pub fn gpqa(prediction: &str) -> Option<char> {
    for lead in ["answer is (", "Answer: (", "answer: (", "answer (", "("] {
        if let Some(letter) = after(prediction, lead, Some(')')) {
            return Some(letter);
        }
    }
    plain_answer(prediction)
}

/// The letter behind the first `lead`, closed by `close` if one is asked for.
fn after(text: &str, lead: &str, close: Option<char>) -> Option<char> {
    let found = text.match_indices(lead).find_map(|(at, _)| {
        let mut rest = text[at + lead.len()..].chars();
        let letter = rest.next()?;
        (close.is_none() || rest.next() == close).then_some(letter)
    })?;
    LETTERS.contains(&found).then_some(found)
}

/// `Answer: X`, in any case, with blanks and a dollar sign allowed before the letter.
fn plain_answer(text: &str) -> Option<char> {
    let lower = text.to_ascii_lowercase();
    lower.match_indices("answer").find_map(|(at, word)| {
        let blank = [' ', '\t'];
        let rest = text[at + word.len()..].trim_start_matches(blank).strip_prefix(':')?;
        let rest = rest.trim_start_matches(blank);
        let letter = rest.strip_prefix('$').unwrap_or(rest).chars().next()?.to_ascii_uppercase();
        LETTERS.contains(&letter).then_some(letter)
    })
}

/// The letter of a LongBench v2 answer: after "The correct answer is", first in brackets, then bare; asterisks are
/// ignored.
pub fn stated(prediction: &str) -> Option<char> {
    let text = prediction.replace('*', "");
    let find = |lead: &str, close: Option<char>| {
        text.match_indices(lead).find_map(|(at, _)| {
            let mut rest = text[at + lead.len()..].chars();
            let letter = rest.next().filter(|c| LETTERS.contains(c))?;
            (close.is_none() || rest.next() == close).then_some(letter)
        })
    };
    find("The correct answer is (", Some(')')).or_else(|| find("The correct answer is ", None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpqa_letters_are_found_in_the_usual_forms() {
        for (text, letter) in [
            ("The correct answer is (C).", Some('C')),
            ("(A) is wrong. Answer: (B)", Some('B')),
            ("I choose (D)", Some('D')),
            ("**Answer: B**", Some('B')),
            ("ANSWER : $d$", Some('D')),
            ("Answer: E", None),
            ("", None),
        ] {
            assert_eq!(gpqa(text), letter, "{text}");
        }
    }

    #[test]
    fn stated_letters_need_the_sentence() {
        assert_eq!(stated("The correct answer is **(B)**"), Some('B'));
        assert_eq!(stated("The correct answer is (E). The correct answer is A"), Some('A'));
        assert_eq!(stated("The correct answer is D, not (A)"), Some('D'));
        assert_eq!(stated("(B)"), None);
        assert_eq!(stated("The correct answer is é"), None);
    }
}
