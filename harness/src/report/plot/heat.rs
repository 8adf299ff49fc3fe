//! Figures by layer and cell, and by layer and KV head, as colours with their numbers.
//!
//! The drawing is written by hand: tiles of one colour are one path, which keeps maps of thousands of tiles small.

use super::draw::{CHAR_WIDTH, HEAD};
use super::style::{GREY, INK, PALE};
use super::{Plot, metric};
use crate::report::view::{Line, View};
use anyhow::Result;
use plotters::style::{RGBColor, WHITE};
use std::collections::BTreeMap;
use std::fmt::Write as _;

const ROW: i32 = 20;
const COLUMN: i32 = 42;
/// Room above the first row for the numbers of the layers, and below the last one.
const ABOVE: i32 = 44;
const BELOW: i32 = 12;
/// Colours of 0 and of 1.
const NOTHING: (f64, f64, f64) = (247.0, 251.0, 255.0);
const ALL: (f64, f64, f64) = (8.0, 48.0, 107.0);

/// A line of a map: a heading if it has no values.
struct Row {
    name: String,
    values: Vec<Option<f64>>,
}

/// Agreement by layer and cell where cells were audited, the hit rate elsewhere.
///
/// # Errors
/// A drawing that can't be written.
pub fn layers(view: &View<'_>) -> Result<Option<Plot>> {
    let rows = |name: &str| -> Vec<Row> {
        let row = |l: &Line<'_>| Row { name: l.cell.label.clone(), values: l.by_layer(name) };
        view.lines.iter().map(row).filter(|r| r.values.iter().any(Option::is_some)).collect()
    };
    let titles = ["Agreement by layer and cell", "Hit rate by layer and cell"];
    let (title, rows) = first_known(titles, rows);
    if rows.len() < 2 {
        return Ok(None);
    }
    let caption = format!("{title}, mean over tasks, KV heads and steps: 0 is white, 1 is dark.");
    let svg = draw(title, &rows)?;
    Ok(Some(Plot { title, file: "plots/layers-by-cell.svg", caption, svg }))
}

/// The same for every KV head: below the name of a cell there is a row a head.
///
/// # Errors
/// A drawing that can't be written.
pub fn heads(view: &View<'_>) -> Result<Option<Plot>> {
    let rows = |name: &str| view.lines.iter().flat_map(|l| of_cell(l, name)).collect();
    let (title, rows) = first_known(["Agreement by layer and head", "Hit rate by layer and head"], rows);
    if rows.is_empty() {
        return Ok(None);
    }
    let caption = format!(
        "{title}, one row a KV head of the cell named above it, mean over tasks and steps: 0 is white, 1 is dark."
    );
    let svg = draw(title, &rows)?;
    Ok(Some(Plot { title, file: "plots/heads-by-cell.svg", caption, svg }))
}

/// Agreement if any cell has it, else the hit rate.
fn first_known(titles: [&'static str; 2], rows: impl Fn(&str) -> Vec<Row>) -> (&'static str, Vec<Row>) {
    let agreement = rows(metric::AGREEMENT);
    if agreement.is_empty() { (titles[1], rows(metric::HIT_RATE)) } else { (titles[0], agreement) }
}

fn of_cell(line: &Line<'_>, name: &str) -> Vec<Row> {
    let layers = line.by_head(name);
    let heads = layers.iter().map(Vec::len).max().unwrap_or(0);
    if heads == 0 {
        return Vec::new();
    }
    let of_head = |h: usize| layers.iter().map(|l| l.get(h).copied().flatten()).collect();
    let heading = Row { name: line.cell.label.clone(), values: Vec::new() };
    let rows = (0..heads).map(|h| Row { name: format!("head {h}"), values: of_head(h) });
    std::iter::once(heading).chain(rows).collect()
}

/// Tiles by colour, and words by colour and side.
#[derive(Default)]
struct Sheet {
    tiles: BTreeMap<String, String>,
    words: BTreeMap<(String, &'static str), String>,
}

impl Sheet {
    fn tile(&mut self, colour: RGBColor, x: i32, y: i32) -> std::fmt::Result {
        let (w, h) = (COLUMN - 1, ROW - 1);
        write!(self.tiles.entry(hex(colour)).or_default(), "M{x} {y}h{w}v{h}h-{w}z")
    }

    fn word(&mut self, text: &str, ink: RGBColor, side: &'static str, x: i32, y: i32) -> std::fmt::Result {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        // A third of the letters' height below the middle: not every viewer knows `dominant-baseline`.
        let all = self.words.entry((hex(ink), side)).or_default();
        writeln!(all, "<text x=\"{x}\" y=\"{}\">{text}</text>", y + 5)
    }

    fn svg(&self, title: &str, width: i32, height: i32) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        writeln!(
            out,
            "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             xmlns=\"http://www.w3.org/2000/svg\" font-family=\"sans-serif\" font-size=\"13\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"{}\"/>\n\
             <text x=\"20\" y=\"{}\" font-size=\"22\" fill=\"{}\">{title}</text>",
            hex(WHITE),
            HEAD / 2 + 9,
            hex(INK)
        )?;
        for (colour, path) in &self.tiles {
            writeln!(out, "<path fill=\"{colour}\" d=\"{path}\"/>")?;
        }
        for ((ink, side), words) in &self.words {
            writeln!(out, "<g fill=\"{ink}\" text-anchor=\"{side}\">\n{words}</g>")?;
        }
        out.push_str("</svg>\n");
        Ok(out)
    }
}

fn draw(title: &str, rows: &[Row]) -> Result<String> {
    let names = rows.iter().filter(|r| !r.values.is_empty());
    let left = 30 + CHAR_WIDTH * names.map(|r| r.name.chars().count()).max().unwrap_or(0) as i32;
    let headings = rows.iter().filter(|r| r.values.is_empty());
    let widest = headings.map(|r| r.name.chars().count()).max().unwrap_or(0) as i32;
    let layers = rows.iter().map(|r| r.values.len()).max().unwrap_or(0) as i32;
    let least = (30 + 12 * title.chars().count() as i32).max(left + widest * CHAR_WIDTH);
    let width = (left + layers * COLUMN + 20).max(least);
    let mut sheet = Sheet::default();
    sheet.word("layer", GREY, "middle", left + layers * COLUMN / 2, HEAD + 10)?;
    for layer in 0..layers {
        let x = left + layer * COLUMN + COLUMN / 2;
        sheet.word(&layer.to_string(), INK, "middle", x, HEAD + 30)?;
    }
    for (r, row) in rows.iter().enumerate() {
        let top = HEAD + ABOVE + r as i32 * ROW;
        if row.values.is_empty() {
            sheet.word(&row.name, INK, "start", left, top + ROW / 2)?;
            continue;
        }
        sheet.word(&row.name, INK, "end", left - 10, top + ROW / 2)?;
        for (layer, value) in row.values.iter().enumerate() {
            let x = left + layer as i32 * COLUMN;
            let (fill, ink, text) = match value.filter(|v| v.is_finite()) {
                Some(v) => (colour(v), if v > 0.5 { WHITE } else { INK }, format!("{v:.2}")),
                None => (PALE, GREY, "–".to_owned()),
            };
            sheet.tile(fill, x, top)?;
            sheet.word(&text, ink, "middle", x + COLUMN / 2, top + ROW / 2)?;
        }
    }
    Ok(sheet.svg(title, width, HEAD + ABOVE + rows.len() as i32 * ROW + BELOW)?)
}

fn hex(RGBColor(r, g, b): RGBColor) -> String {
    format!("#{r:02X}{g:02X}{b:02X}")
}

/// From white at 0 to dark blue at 1, in even steps of lightness; of the two decimals that a tile shows.
fn colour(value: f64) -> RGBColor {
    let value = (value.clamp(0.0, 1.0) * 100.0).round() / 100.0;
    let mix = |from: f64, to: f64| (from + (to - from) * value).round() as u8;
    RGBColor(mix(NOTHING.0, ALL.0), mix(NOTHING.1, ALL.1), mix(NOTHING.2, ALL.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_no_colour_of_the_scale() {
        let row = |name: &str, values| Row { name: name.to_owned(), values };
        let rows = [
            row("a <&> b", Vec::new()),
            row("head 0", vec![Some(0.0), None]),
            row("head 1", vec![Some(1.0), Some(f64::NAN)]),
        ];
        let svg = draw("title", &rows).unwrap();
        assert!(svg.contains("#F7FBFF") && svg.contains("#08306B"), "{svg}");
        let unknown = svg.lines().find(|l| l.contains("<path fill=\"#E4E4E4\"")).unwrap();
        assert_eq!(unknown.matches('M').count(), 2, "{svg}");
        assert!(!svg.contains("NaN") && svg.contains(">1.00<") && svg.contains(">a &lt;&amp;> b<"), "{svg}");
    }
}
