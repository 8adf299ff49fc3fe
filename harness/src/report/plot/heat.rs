//! A figure by layer and cell, as colours with their numbers.

use super::draw::{Area, CHAR_WIDTH, Drawn, HEAD, TEXT, words};
use super::style::{GREY, INK, PALE};
use super::{Plot, metric};
use crate::report::view::{Line, View};
use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

const ROW: i32 = 20;
const COLUMN: i32 = 52;
/// Room above the first row for the numbers of the layers, and below the last one.
const ABOVE: i32 = 44;
const BELOW: i32 = 12;
/// Colours of 0 and of 1.
const NOTHING: (f64, f64, f64) = (247.0, 251.0, 255.0);
const ALL: (f64, f64, f64) = (8.0, 48.0, 107.0);

/// Agreement by layer and cell where cells were audited, the hit rate elsewhere.
///
/// # Errors
/// The drawing library fails.
pub fn layers(view: &View<'_>) -> Result<Option<Plot>> {
    let rows = |name: &str| -> Vec<(String, Vec<Option<f64>>)> {
        let row = |l: &Line<'_>| (l.cell.label.clone(), l.by_layer(name));
        view.lines.iter().map(row).filter(|(_, v)| v.iter().any(Option::is_some)).collect()
    };
    let (mut title, mut rows_of) = ("Agreement by layer and cell", rows(metric::AGREEMENT));
    if rows_of.is_empty() {
        (title, rows_of) = ("Hit rate by layer and cell", rows(metric::HIT_RATE));
    }
    if rows_of.len() < 2 {
        return Ok(None);
    }
    let caption = format!(
        "{title}, mean over tasks, KV heads and steps: 0 is white, 1 is dark. Records have no figures of single heads."
    );
    let svg = draw(title, &rows_of)?;
    Ok(Some(Plot { title, file: "plots/layers-by-cell.svg", caption, svg }))
}

fn draw(title: &str, rows: &[(String, Vec<Option<f64>>)]) -> Result<String> {
    let left = 30 + CHAR_WIDTH * rows.iter().map(|r| r.0.chars().count()).max().unwrap_or(0) as i32;
    let layers = rows.iter().map(|r| r.1.len()).max().unwrap_or(0) as i32;
    let width = (left + layers * COLUMN + 20).max(30 + 12 * title.chars().count() as i32);
    let size = (width as u32, (HEAD + ABOVE + rows.len() as i32 * ROW + BELOW) as u32);
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        paint(&root, title, rows, left).map_err(|e| anyhow!("plot `{title}`: {e}"))?;
        root.present().map_err(|e| anyhow!("plot `{title}`: {e}"))?;
    }
    Ok(text)
}

fn paint(root: &Area<'_>, title: &str, rows: &[(String, Vec<Option<f64>>)], left: i32) -> Drawn {
    root.fill(&WHITE)?;
    root.draw(&words(title, (20, HEAD / 2 + 2), 22.0, &INK, HPos::Left))?;
    let layers = rows.iter().map(|r| r.1.len()).max().unwrap_or(0) as i32;
    root.draw(&words("layer", (left + layers * COLUMN / 2, HEAD + 10), TEXT, &GREY, HPos::Center))?;
    for layer in 0..layers {
        let at = (left + layer * COLUMN + COLUMN / 2, HEAD + 30);
        root.draw(&words(&layer.to_string(), at, TEXT, &INK, HPos::Center))?;
    }
    for (r, (name, values)) in rows.iter().enumerate() {
        let top = HEAD + ABOVE + r as i32 * ROW;
        root.draw(&words(name, (left - 10, top + ROW / 2), TEXT, &INK, HPos::Right))?;
        for (layer, value) in values.iter().enumerate() {
            let x = left + layer as i32 * COLUMN;
            let corners = [(x, top), (x + COLUMN - 1, top + ROW - 1)];
            let (fill, ink, text) = match value.filter(|v| v.is_finite()) {
                Some(v) => (colour(v), if v > 0.5 { &WHITE } else { &INK }, format!("{v:.2}")),
                None => (PALE, &GREY, "–".to_owned()),
            };
            root.draw(&Rectangle::new(corners, fill.filled()))?;
            root.draw(&words(&text, (x + COLUMN / 2, top + ROW / 2), 13.0, ink, HPos::Center))?;
        }
    }
    Ok(())
}

/// From white at 0 to dark blue at 1, in even steps of lightness.
fn colour(value: f64) -> RGBColor {
    let mix = |from: f64, to: f64| (from + (to - from) * value.clamp(0.0, 1.0)).round() as u8;
    RGBColor(mix(NOTHING.0, ALL.0), mix(NOTHING.1, ALL.1), mix(NOTHING.2, ALL.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_no_colour_of_the_scale() {
        let rows =
            [("a".to_owned(), vec![Some(0.0), None]), ("b".to_owned(), vec![Some(1.0), Some(f64::NAN)])];
        let svg = draw("title", &rows).unwrap();
        assert!(svg.contains("#F7FBFF") && svg.contains("#08306B"), "{svg}");
        assert_eq!(svg.matches("#E4E4E4").count(), 2, "{svg}");
        assert!(!svg.contains("NaN") && svg.contains("1.00"));
    }
}
