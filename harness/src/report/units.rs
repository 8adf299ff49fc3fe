//! Numbers and sentences as people read them.

/// Bytes with three significant digits and a binary prefix.
pub fn bytes(n: u64) -> String {
    bytes_f(n as f64)
}

/// The same for a mean of bytes.
pub fn bytes_f(n: f64) -> String {
    const PREFIXES: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = n;
    let mut prefix = 0;
    // 999.5 would be rounded up to four digits.
    while value.abs() >= 999.5 && prefix + 1 < PREFIXES.len() {
        value /= 1024.0;
        prefix += 1;
    }
    if prefix == 0 && value.fract() == 0.0 {
        return format!("{value:.0} B");
    }
    format!("{} {}", significant(value), PREFIXES[prefix])
}

/// Three significant digits, without an exponent where one is not needed.
pub fn significant(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if !value.is_finite() {
        format!("{value}")
    } else if size < 1e-3 {
        format!("{value:.1e}")
    } else if size < 0.1 {
        format!("{value:.4}")
    } else if size < 1.0 {
        format!("{value:.3}")
    } else if size < 9.995 {
        format!("{value:.2}")
    } else if size < 99.95 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

/// Seconds as `1 h 02 min`, `3 min 05 s`, `12.3 s`.
pub fn seconds(s: f64) -> String {
    let whole = s.round() as u64;
    match whole {
        0..=59 => format!("{s:.1} s"),
        60..=3599 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// `text` in lines of at most `width` characters, all but the first indented.
pub fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let mut out = String::new();
    let mut used = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            out += "\n";
            out += &" ".repeat(indent);
            used = 0;
        } else if used > 0 {
            out += " ";
            used += 1;
        }
        out += word;
        used += length;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_three_digits() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "0.977 KiB"),
            (1024, "1.00 KiB"),
            (98_362_432, "93.8 MiB"),
            (1 << 30, "1.00 GiB"),
            (u64::MAX, "16384 PiB"),
        ];
        for (n, want) in cases {
            assert_eq!(bytes(n), want);
        }
        assert_eq!(bytes_f(12.5), "12.5 B");
    }

    #[test]
    fn small_numbers_keep_their_digits() {
        let cases = [
            (0.0, "0"),
            (0.00012, "1.2e-4"),
            (0.0047, "0.0047"),
            (0.5, "0.500"),
            (12.34, "12.3"),
            (-3.0, "-3.00"),
        ];
        for (x, want) in cases {
            assert_eq!(significant(x), want);
        }
        assert_eq!(significant(f64::NAN), "NaN");
    }

    #[test]
    fn seconds_grow_into_hours() {
        assert_eq!(seconds(12.34), "12.3 s");
        assert_eq!(seconds(185.0), "3 min 05 s");
        assert_eq!(seconds(3720.0), "1 h 02 min");
    }

    #[test]
    fn words_wrap_at_the_width() {
        assert_eq!(wrapped("a bb ccc dd", 5, 2), "a bb\n  ccc\n  dd");
        assert_eq!(wrapped("", 5, 2), "");
        assert_eq!(wrapped("abcdefgh", 5, 2), "abcdefgh");
    }
}
