//! Ranges, ticks and labels of axes.

use super::draw::Series;

/// An axis: its range and the ticks on it, in the coordinates of the points.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// What it shows, with its unit.
    pub label: String,
    /// From, to.
    pub range: (f64, f64),
    /// Places and their labels.
    pub ticks: Vec<(f64, String)>,
}

/// Smallest and largest of the values; 0 and 1 if there are none.
fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (lo, hi) = values
        .filter(|v| v.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), v| (lo.min(v), hi.max(v)));
    if lo > hi { (0.0, 1.0) } else { (lo, hi) }
}

fn ys(series: &[Series]) -> impl Iterator<Item = f64> + '_ {
    series.iter().flat_map(|s| &s.points).flat_map(|p| {
        let e = p.error.unwrap_or(0.0);
        [p.y - e, p.y + e]
    })
}

fn xs(series: &[Series]) -> impl Iterator<Item = f64> + '_ {
    series.iter().flat_map(|s| &s.points).map(|p| p.x)
}

/// The step of 1, 2 or 5 times a power of ten that gives at most `most` steps over `span`.
fn nice_step(span: f64, most: f64) -> f64 {
    let raw = (span / most).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|f| f * power >= raw * (1.0 - 1e-9)).unwrap_or(10.0);
    factor * power
}

/// Multiples of `step` in `lo ..= hi`.
fn multiples(lo: f64, hi: f64, step: f64) -> impl Iterator<Item = f64> {
    let (first, last) = ((lo / step - 1e-9).ceil() as i64, (hi / step + 1e-9).floor() as i64);
    (first..=last).map(move |i| i as f64 * step)
}

impl Axis {
    /// Whole numbers along x: layers, steps.
    pub fn whole(label: &str, series: &[Series]) -> Self {
        let (lo, hi) = extent(xs(series));
        let step = nice_step((hi - lo).max(1.0), 8.0).max(1.0);
        let ticks = multiples(lo, hi, step).map(|v| (v, format!("{v:.0}"))).collect();
        let room = ((hi - lo) * 0.02).max(0.1);
        Self { label: label.to_owned(), range: (lo - room, hi + room), ticks }
    }

    /// Shares up to 1; from 0, or from the tenth below the lowest.
    pub fn share(label: &str, series: &[Series], from_zero: bool) -> Self {
        let (lo, _) = extent(ys(series));
        let bottom = if from_zero { 0.0 } else { ((lo * 10.0).floor() / 10.0).clamp(0.0, 0.9) };
        let step = nice_step(1.0 - bottom, 6.0);
        let digits = if step < 0.1 { 2 } else { 1 };
        let ticks = multiples(bottom, 1.0, step).map(|v| (v, format!("{v:.digits$}"))).collect();
        let room = (1.0 - bottom) * 0.03;
        Self { label: label.to_owned(), range: (bottom - room, 1.0 + room), ticks }
    }

    /// From 0 to above the largest, along y. `format` names a tick.
    pub fn from_zero(label: &str, series: &[Series], format: &dyn Fn(f64) -> String) -> Self {
        let (_, hi) = extent(ys(series));
        // Bytes are counted in powers of two; round numbers of the prefix that the top has.
        Self::up_to(label, hi, 1024.0, format)
    }

    /// The same along x; ticks are round numbers of a power of `base`.
    pub fn from_zero_x(label: &str, series: &[Series], base: f64, format: &dyn Fn(f64) -> String) -> Self {
        let (_, hi) = extent(xs(series));
        Self::up_to(label, hi, base, format)
    }

    fn up_to(label: &str, hi: f64, base: f64, format: &dyn Fn(f64) -> String) -> Self {
        let top = if hi > 0.0 { hi * 1.05 } else { 1.0 };
        let unit = base.powf((top.ln() / base.ln()).floor().max(0.0));
        let step = nice_step(top / unit, 5.0) * unit;
        let ticks = multiples(0.0, top, step).map(|v| (v, format(v))).collect();
        Self { label: label.to_owned(), range: (-0.02 * top, top), ticks }
    }

    /// Places of words: 0, 1, 2, ...
    pub fn places(label: &str, names: &[String]) -> Self {
        let ticks = names.iter().enumerate().map(|(i, name)| (i as f64, name.clone())).collect();
        Self { label: label.to_owned(), range: (-0.3, names.len() as f64 - 0.7), ticks }
    }

    /// Base-2 logarithms of budgets, each with its tick.
    pub fn budgets(label: &str, budgets: &[usize]) -> Self {
        let places = budgets.iter().map(|&b| (b as f64).log2());
        let (lo, hi) = extent(places);
        let room = ((hi - lo) * 0.06).max(0.25);
        let ticks = budgets.iter().map(|&b| ((b as f64).log2(), b.to_string())).collect();
        Self { label: label.to_owned(), range: (lo - room, hi + room), ticks }
    }

    /// Base-10 logarithms of values above 0. `series` are not yet logarithms.
    pub fn logarithmic(label: &str, series: &[Series]) -> Self {
        let values = series.iter().flat_map(|s| &s.points).map(|p| p.y).filter(|y| *y > 0.0);
        let (lo, hi) = extent(values.map(f64::log10));
        let (lo, hi) = (lo - 0.12, hi + 0.12);
        let factors: &[f64] = if hi - lo < 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let mut ticks = Vec::new();
        for decade in lo.floor() as i32..=hi.ceil() as i32 {
            for factor in factors {
                let place = f64::from(decade) + factor.log10();
                if (lo..=hi).contains(&place) {
                    ticks.push((place, power_label(decade, *factor)));
                }
            }
        }
        Self { label: label.to_owned(), range: (lo, hi), ticks }
    }
}

/// `0.02`, `5`, `100`, `2e-6`.
fn power_label(decade: i32, factor: f64) -> String {
    match decade {
        -4..=-1 => format!("{:.*}", decade.unsigned_abs() as usize, factor * 10f64.powi(decade)),
        0..=4 => format!("{:.0}", factor * 10f64.powi(decade)),
        _ => format!("{factor:.0}e{decade}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::draw::Point;
    use super::*;

    fn series(ys: &[f64]) -> Vec<Series> {
        let points = ys.iter().enumerate().map(|(i, y)| Point::new(i as f64, *y)).collect();
        vec![Series::new("a", &["a".to_owned()], points)]
    }

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, l)| l.as_str()).collect()
    }

    #[test]
    fn shares_end_at_one() {
        assert_eq!(
            labels(&Axis::share("", &series(&[0.71, 0.9]), false)),
            ["0.70", "0.75", "0.80", "0.85", "0.90", "0.95", "1.00"]
        );
        assert_eq!(
            labels(&Axis::share("", &series(&[0.0, 0.9]), true)),
            ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
        );
    }

    #[test]
    fn whole_numbers_have_whole_ticks() {
        assert_eq!(labels(&Axis::whole("", &series(&[0.0; 6]))), ["0", "1", "2", "3", "4", "5"]);
        assert_eq!(labels(&Axis::whole("", &series(&[0.0; 30]))), ["0", "5", "10", "15", "20", "25"]);
        assert_eq!(labels(&Axis::whole("", &series(&[0.0]))), ["0"]);
    }

    #[test]
    fn logarithms_are_labelled_with_their_numbers() {
        assert_eq!(
            labels(&Axis::logarithmic("", &series(&[0.004, 0.12]))),
            ["0.005", "0.010", "0.020", "0.050", "0.100"].map(trim_zero)
        );
        assert_eq!(
            labels(&Axis::logarithmic("", &series(&[1e-6, 1.0]))),
            ["1e-6", "1e-5", "0.0001", "0.001", "0.01", "0.1", "1"]
        );
    }

    /// The labels carry only the digits that their decade needs.
    fn trim_zero(label: &str) -> &str {
        if label.len() > 4 && label.ends_with('0') { label.trim_end_matches('0') } else { label }
    }

    #[test]
    fn no_values_are_no_panic() {
        for axis in [
            Axis::whole("", &[]),
            Axis::share("", &[], false),
            Axis::logarithmic("", &[]),
            Axis::budgets("", &[]),
            Axis::places("", &["only".to_owned()]),
            Axis::from_zero_x("", &[], 10.0, &|v| v.to_string()),
        ] {
            assert!(axis.range.0 < axis.range.1);
        }
        assert!(Axis::from_zero("", &series(&[f64::NAN]), &|v| v.to_string()).range.1 > 0.0);
    }
}
