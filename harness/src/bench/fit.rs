//! Step time over context: a straight line through the medians.

use schemars::JsonSchema;
use serde::Serialize;

/// `ms = constant + slope · context / 1024`, least squares.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Fit {
    /// Which rows.
    pub name: String,
    /// Milliseconds at context 0.
    pub constant_ms: f64,
    /// Milliseconds for each 1,024 tokens of context.
    pub ms_per_1024: f64,
    /// Share of the variance that the line explains; none through two points.
    pub r2: Option<f64>,
    /// Points.
    pub n: usize,
}

/// The line through (context, milliseconds); none for fewer than two contexts.
pub fn line(name: &str, points: &[(f64, f64)]) -> Option<Fit> {
    let n = points.len() as f64;
    let (mx, my) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let sxx: f64 = points.iter().map(|p| (p.0 - mx).powi(2)).sum();
    if points.len() < 2 || sxx == 0.0 {
        return None;
    }
    let sxy: f64 = points.iter().map(|p| (p.0 - mx) * (p.1 - my)).sum();
    let syy: f64 = points.iter().map(|p| (p.1 - my).powi(2)).sum();
    let slope = sxy / sxx;
    let r2 = (points.len() > 2).then(|| if syy > 0.0 { slope * sxy / syy } else { 1.0 });
    Some(Fit {
        name: name.to_owned(),
        constant_ms: my - slope * mx,
        ms_per_1024: 1024.0 * slope,
        r2,
        n: points.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found() {
        let fit = line("dense", &[(1024.0, 3.0), (2048.0, 5.0), (4096.0, 9.0)]).unwrap();
        assert!((fit.constant_ms - 1.0).abs() < 1e-9 && (fit.ms_per_1024 - 2.0).abs() < 1e-9, "{fit:?}");
        assert!((fit.r2.unwrap() - 1.0).abs() < 1e-9 && fit.n == 3);
        assert_eq!(line("one", &[(1024.0, 3.0)]), None);
        assert_eq!(line("same", &[(1024.0, 3.0), (1024.0, 4.0)]), None);
        assert_eq!(line("two", &[(1024.0, 3.0), (2048.0, 4.0)]).unwrap().r2, None);
    }
}
