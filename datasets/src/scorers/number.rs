//! Numbers in answers.

use super::text::digit_runs;

/// True if the last number of `prediction`, cut where the next question begins, equals `gold`.
pub fn gsm8k(prediction: &str, gold: &str) -> bool {
    let answer = before_next_question(prediction);
    match (last_number(answer), last_number(gold)) {
        (Some(found), Some(gold)) => found == gold,
        _ => false,
    }
}

/// The text up to a line that begins with `Question:`: models without an end of turn go on with a new problem.
fn before_next_question(text: &str) -> &str {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if at > 0 && line.starts_with("Question:") {
            return &text[..at];
        }
        at += line.len();
    }
    text
}

/// The last decimal number of a text. Thousands commas are read, a minus sign too unless it stands behind a digit, a
/// letter or a bracket, where it subtracts.
pub fn last_number(text: &str) -> Option<f64> {
    let bytes = text.as_bytes();
    let mut last = None;
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let end = number_end(bytes, at);
        let value: f64 = text[at..end].replace(',', "").parse().ok()?;
        last = Some(if is_negative(bytes, at) { -value } else { value });
        at = end;
    }
    last
}

/// Where the number that begins at `from` ends: digits, groups of three behind commas, a fraction.
fn number_end(bytes: &[u8], from: usize) -> usize {
    let digits = |at: usize| bytes[at.min(bytes.len())..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut end = from + digits(from);
    while bytes.get(end) == Some(&b',') && digits(end + 1) == 3 {
        end += 4;
    }
    if bytes.get(end) == Some(&b'.') && digits(end + 1) > 0 {
        end += 1 + digits(end + 1);
    }
    end
}

fn is_negative(bytes: &[u8], at: usize) -> bool {
    let Some(sign) = at.checked_sub(1).filter(|&i| bytes[i] == b'-') else { return false };
    let before = sign.checked_sub(1).map(|i| bytes[i]);
    !before.is_some_and(|b| b.is_ascii_alphanumeric() || b == b')')
}

/// True if the last boxed integer, or else the last integer, is `gold`. Leading zeros do not matter.
pub fn aime(prediction: &str, gold: &str) -> bool {
    let found =
        last_boxed(prediction).and_then(integer).or_else(|| digit_runs(prediction).last().map(strip_zeros));
    found.is_some() && found == integer(gold)
}

/// What the last `\boxed{…}` holds; braces inside it are paired.
fn last_boxed(text: &str) -> Option<&str> {
    const OPEN: &str = "\\boxed{";
    let from = text.rfind(OPEN)? + OPEN.len();
    let mut depth = 1;
    for (i, c) in text[from..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&text[from..from + i]);
        }
    }
    None
}

/// A text that is one integer, without leading zeros.
fn integer(text: &str) -> Option<&str> {
    let text = text.trim().trim_matches('$').trim();
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| strip_zeros(text))
}

fn strip_zeros(digits: &str) -> &str {
    match digits.trim_start_matches('0') {
        "" => "0",
        rest => rest,
    }
}

/// True if the last integer of `prediction` is `gold`.
pub fn last_integer_is(prediction: &str, gold: &str) -> bool {
    digit_runs(prediction).last().map(strip_zeros).is_some_and(|found| found == strip_zeros(gold.trim()))
}

/// The first number of a text as `digits.digits` or `digits`.
pub fn first_number(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let from = bytes.iter().position(u8::is_ascii_digit)?;
    let digits = |at: usize| bytes[at.min(bytes.len())..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut end = from + digits(from);
    if bytes.get(end) == Some(&b'.') && digits(end + 1) > 0 {
        end += 1 + digits(end + 1);
    }
    Some(&text[from..end])
}

/// True if two runs of digits are the same integer.
pub fn same_integer(a: &str, b: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits(a) && digits(b) && strip_zeros(a) == strip_zeros(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_is_read_as_a_number() {
        for (text, value) in [
            ("so 3 + 4 = 7.", Some(7.0)),
            ("A: 1,234,567", Some(1_234_567.0)),
            ("$2,50 or 3,1415", Some(1415.0)),
            ("costs $18.50!", Some(18.5)),
            ("it is -5", Some(-5.0)),
            ("10-3", Some(3.0)),
            ("(4)-3", Some(3.0)),
            ("12.", Some(12.0)),
            ("no number", None),
            ("", None),
            ("٣ is not read", None),
        ] {
            assert_eq!(last_number(text), value, "{text}");
        }
    }

    #[test]
    fn a_new_question_ends_the_answer() {
        assert!(gsm8k(" It is 18.\n\nQuestion: Tom has 5 pens.", "18"));
        assert!(!gsm8k(" It is 18.\n\nSo Tom has 5 pens.", "18"));
        assert!(gsm8k("The answer is 70000.", "#### 70,000"));
        assert!(!gsm8k("", "18"));
    }

    #[test]
    fn boxes_win_over_loose_integers() {
        assert!(aime("Thus \\boxed{073}. Check: 5.", "73"));
        assert!(aime("first \\boxed{1}, then \\boxed{$204$}", "204"));
        assert!(aime("the sum is 204", "204"));
        assert!(!aime("\\boxed{\\frac{1}{2}} and 3", "204"));
        assert!(aime("\\boxed{x+1} hence 12", "012"));
        assert!(!aime("", "0"));
    }

    #[test]
    fn integers_are_compared_as_integers() {
        assert!(last_integer_is("The content is <02416>", "2416"));
        assert!(!last_integer_is("2416, not 7", "2416"));
        assert_eq!(first_number("about 3.25 or 4"), Some("3.25"));
        assert_eq!(first_number("ends 12."), Some("12"));
        assert!(same_integer("007", "7") && !same_integer("", "") && !same_integer("7.0", "7"));
    }
}
