//! Comparison of words.

use std::collections::HashMap;

/// Share of `references` that occur in `prediction`, ignoring case; 0 if there are none.
pub fn share_contained(prediction: &str, references: &[String]) -> f64 {
    if references.is_empty() {
        return 0.0;
    }
    let prediction = prediction.to_lowercase();
    let found = references.iter().filter(|r| prediction.contains(&r.to_lowercase())).count();
    found as f64 / references.len() as f64
}

/// True if a reference is part of the first line of `prediction`, both normalised.
pub fn subspan(prediction: &str, references: &[String]) -> bool {
    let first = normalise(prediction.split('\n').next().unwrap_or_default());
    references.iter().map(|r| normalise(r)).any(|r| !r.is_empty() && first.contains(&r))
}

/// Lower case, without ASCII punctuation, articles and repeated white space (SQuAD's normalisation).
pub fn normalise(text: &str) -> String {
    let plain: String = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let mut out = String::with_capacity(plain.len());
    let mut rest = plain.as_str();
    while !rest.is_empty() {
        let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        let word = &rest[..end];
        out.push_str(if matches!(word, "a" | "an" | "the") { " " } else { word });
        let gap = rest[end..].find(is_word).map_or(rest.len(), |n| end + n);
        out.push_str(&rest[end..gap]);
        rest = &rest[gap..];
    }
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Punctuation of Chinese texts that [`normalise_chinese`] removes besides ASCII's.
const CHINESE_PUNCTUATION: &str = "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏";

/// Lower case, without punctuation and white space.
pub fn normalise_chinese(text: &str) -> String {
    let drop = |c: &char| c.is_ascii_punctuation() || c.is_whitespace() || CHINESE_PUNCTUATION.contains(*c);
    text.to_lowercase().chars().filter(|c| !drop(c)).collect()
}

/// F1 of two bags of tokens.
pub fn bag_f1<T: std::hash::Hash + Eq>(prediction: &[T], reference: &[T]) -> f64 {
    let mut left: HashMap<&T, usize> = HashMap::new();
    for token in reference {
        *left.entry(token).or_default() += 1;
    }
    let mut same = 0usize;
    for token in prediction {
        if let Some(n) = left.get_mut(token).filter(|n| **n > 0) {
            *n -= 1;
            same += 1;
        }
    }
    if same == 0 {
        return 0.0;
    }
    let precision = same as f64 / prediction.len() as f64;
    let recall = same as f64 / reference.len() as f64;
    2.0 * precision * recall / (precision + recall)
}

/// Token F1 of two normalised texts.
pub fn qa_f1(prediction: &str, reference: &str) -> f64 {
    let (prediction, reference) = (normalise(prediction), normalise(reference));
    let words = |text: &'_ str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    bag_f1(&words(&prediction), &words(&reference))
}

/// F1 of two normalised texts, every character a token.
pub fn character_f1(prediction: &str, reference: &str) -> f64 {
    let tokens = |text: &str| normalise_chinese(text).chars().collect::<Vec<_>>();
    bag_f1(&tokens(prediction), &tokens(reference))
}

/// The runs of ASCII digits of a text.
pub fn digit_runs(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_digit()).filter(|run| !run.is_empty())
}

/// `text` with each of `marks` replaced by a blank.
pub fn blanked(text: &str, marks: &[&str]) -> String {
    marks.iter().fold(text.to_owned(), |text, mark| text.replace(mark, " "))
}

/// Similarity of two texts in whole percent: twice the longest common subsequence over both lengths.
pub fn similarity_percent(a: &str, b: &str) -> f64 {
    if a == b {
        return 100.0;
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.is_empty() || b.is_empty() {
        return 0.0;
    }
    let mut row = vec![0usize; b.len() + 1];
    for x in &a {
        let mut diagonal = 0;
        for (j, y) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = if x == y { diagonal + 1 } else { above.max(row[j]) };
            diagonal = above;
        }
    }
    (200.0 * row[b.len()] as f64 / (a.len() + b.len()) as f64).round_ties_even()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalisation_removes_articles_as_words_only() {
        assert_eq!(normalise("The cat's  A-team, an anthem!"), "cats ateam anthem");
        assert_eq!(normalise("“a” – theatre\tthe"), "“ ” – theatre");
        assert_eq!(normalise_chinese("《你好》，World 1。"), "《你好world1");
    }

    #[test]
    fn f1_counts_repeated_words() {
        assert_eq!(qa_f1("the cat cat", "cat dog"), 0.5);
        assert_eq!(qa_f1("Cat.", "a cat"), 1.0);
        assert_eq!(qa_f1("", ""), 0.0);
        assert_eq!(character_f1("北京。", "北京市"), 0.8);
    }

    #[test]
    fn subspans_are_looked_for_in_the_first_line() {
        let gold = ["Wilhelm Conrad Röntgen".to_owned()];
        assert!(subspan("It was wilhelm conrad Röntgen, in 1901.", &gold));
        assert!(!subspan("It was\nWilhelm Conrad Röntgen", &gold));
        assert!(!subspan("anything", &["the".to_owned()]));
    }
}
