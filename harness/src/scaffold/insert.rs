//! Edits of Rust text: a `mod` line among its kin, a row at the end of a table.

use anyhow::{Context, Result, bail};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// `pub mod name;` or `mod name;` of a line.
fn module_of(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub ").unwrap_or(line).strip_prefix("mod ")?;
    rest.strip_suffix(';').filter(|n| n.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
}

/// Adds a module line in its alphabetical place, public if the others are.
pub fn module(text: &str, name: &str) -> Result<String> {
    let lines: Vec<&str> = text.lines().collect();
    let present: Vec<(usize, &str)> =
        lines.iter().enumerate().filter_map(|(i, l)| module_of(l).map(|m| (i, m))).collect();
    if present.iter().any(|(_, m)| *m == name) {
        bail!("there is a module `{name}` already");
    }
    let Some(&(first, _)) = present.first() else { bail!("there is no `mod` line to put another beside") };
    // The first run of lines is the list of policies; a `mod tests` may stand alone further down.
    let run = present.iter().enumerate().take_while(|(i, (line, _))| *line == first + i).map(|(_, m)| *m);
    let at = run.clone().find(|(_, m)| *m > name).map_or_else(|| first + run.count(), |(line, _)| line);
    let public = if lines[first].starts_with("pub ") { "pub " } else { "" };
    let mut out: Vec<String> = lines.iter().map(|l| (*l).to_owned()).collect();
    out.insert(at, format!("{public}mod {name};"));
    Ok(out.join("\n") + "\n")
}

fn start_of(text: &str, table: &str) -> Option<usize> {
    ["const", "static"].iter().find_map(|word| text.find(&format!("{word} {table}:")))
}

/// Whether the text holds the array `table`.
pub fn has_table(text: &str, table: &str) -> bool {
    start_of(text, table).is_some()
}

/// Adds `row` at the end of the array `table` (a `const` or `static`).
pub fn row(text: &str, table: &str, row: &str) -> Result<String> {
    let start = start_of(text, table).with_context(|| format!("there is no table `{table}`"))?;
    let equals = start + text[start..].find('=').with_context(|| format!("`{table}` has no value"))?;
    let open = equals + text[equals..].find('[').with_context(|| format!("`{table}` is no array"))?;
    let close = closing(text, open).with_context(|| format!("the array `{table}` has no end"))?;
    let inner = text[open + 1..close].trim_end();
    let comma = if inner.trim().is_empty() || inner.ends_with(',') { "" } else { "," };
    let multi = text[open..close].contains('\n');
    let (before, after) = if multi { ("\n    ", ",\n") } else { (" ", "") };
    let before = if inner.trim().is_empty() && !multi { "" } else { before };
    Ok(format!("{}{inner}{comma}{before}{row}{after}{}", &text[..=open], &text[close..]))
}

/// The bracket that closes the one at `open`.
fn closing(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (i, c) in text[open..].char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(open + i);
        }
    }
    None
}

/// The text as rustfmt leaves it; unchanged if there is no rustfmt.
pub fn formatted(text: &str, root: &Path) -> String {
    let run = || -> Option<String> {
        let mut child = Command::new("rustfmt")
            .args(["--edition", "2024", "--config-path"])
            .arg(root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        child.stdin.take()?.write_all(text.as_bytes()).ok()?;
        let output = child.wait_with_output().ok()?;
        let out = String::from_utf8(output.stdout).ok()?;
        (output.status.success() && !out.is_empty()).then_some(out)
    };
    run().unwrap_or_else(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_put_among_its_kin() {
        let text = "//! Doc.\n\npub mod fifo;\npub mod lru;\n\nuse x;\n\n#[cfg(test)]\nmod tests;\n";
        assert!(module(text, "lfu").unwrap().contains("pub mod fifo;\npub mod lfu;\npub mod lru;\n\nuse"));
        assert!(module(text, "zz").unwrap().contains("pub mod lru;\npub mod zz;\n\nuse"));
        assert!(module(text, "aa").unwrap().contains("\n\npub mod aa;\npub mod fifo;"));
        assert!(module(text, "lru").is_err());
        assert!(module("use x;\n", "lru").is_err());
    }

    #[test]
    fn a_row_is_put_at_the_end_of_its_table() {
        let one = "pub const A: &[E] = &[x::ENTRY, y::ENTRY];\nconst B: &[E] = &[];\n";
        assert!(row(one, "A", "z::ENTRY").unwrap().contains("&[x::ENTRY, y::ENTRY, z::ENTRY];"));
        assert!(row(one, "B", "z::ENTRY").unwrap().contains("const B: &[E] = &[z::ENTRY];"));
        let many = "pub static A: &[E] = &[\n    x::ENTRY,\n    y::ENTRY,\n];\n";
        assert!(row(many, "A", "z::ENTRY").unwrap().contains("    y::ENTRY,\n    z::ENTRY,\n];"));
        assert!(row(one, "C", "z::ENTRY").is_err());
        assert!(row("const A: &[E] = &[x", "A", "z").is_err());
    }
}
