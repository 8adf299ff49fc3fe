//! Error messages of the TOML reader, with a suggestion.

use oasis_core::error::nearest;
use oasis_core::settings::Mode;

/// Why a run has no `auto` among its modes, and what to do instead.
const AUTO: &str = "`auto` goes by bandwidths that it measures, and a run must be the same run on every machine: \
    `oasis bench decode --modes auto` says which of `dense` and `staged` is faster here, and why; then give that one, or both as \
    two cells";

/// `message` of serde about an unknown field or variant, with the nearest known name appended.
pub fn did_you_mean(message: &str) -> String {
    let Some((unknown, known)) = unknown_name(message) else { return message.to_owned() };
    if unknown == "auto" && Mode::ALL.iter().all(|mode| known.contains(&mode.name())) {
        return format!("{message}\n{AUTO}");
    }
    match nearest(unknown, known.iter().copied()) {
        Some(name) => format!("{message}\ndid you mean `{name}`?"),
        None => message.to_owned(),
    }
}

/// The name that serde did not know, and those that it knew.
fn unknown_name(message: &str) -> Option<(&str, Vec<&str>)> {
    let at = message.find("unknown field `").or_else(|| message.find("unknown variant `"))?;
    let mut quoted = message[at..].split('`').skip(1).step_by(2);
    Some((quoted.next()?, quoted.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_known_name_is_offered() {
        let m = "unknown field `budgt`, expected one of `mode`, `budget`, `cap`";
        assert!(did_you_mean(m).ends_with("did you mean `budget`?"));
        assert_eq!(
            did_you_mean("unknown field `zzzzzz`, expected `mode`"),
            "unknown field `zzzzzz`, expected `mode`"
        );
        assert_eq!(did_you_mean("invalid type"), "invalid type");
        let names: Vec<String> = Mode::ALL.iter().map(|m| format!("`{}`", m.name())).collect();
        let m = format!("unknown variant `auto`, expected one of {}", names.join(", "));
        assert!(did_you_mean(&m).ends_with(AUTO));
        assert!(!did_you_mean("unknown field `auto`, expected `mode`").contains("bench"));
    }
}
