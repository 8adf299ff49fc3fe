//! Panels of lines with their names beside them.

use super::axis::Axis;
use super::style::{GREY, INK, LEADER, Marker, PALE, Style};
use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A point of a series; `error` is drawn as a bar up and down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    pub error: Option<f64>,
}

impl Point {
    pub fn new(x: f64, y: f64) -> Self {
        Self { x, y, error: None }
    }
}

/// A line of points with its name and look.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    pub name: String,
    pub style: Style,
    pub points: Vec<Point>,
    /// A line through the points.
    pub joined: bool,
}

impl Series {
    /// `names` are the names of all series of the report: the place among them gives the look.
    pub fn new(name: &str, names: &[String], mut points: Vec<Point>) -> Self {
        points.retain(|p| p.x.is_finite() && p.y.is_finite());
        let place = names.iter().position(|n| n == name).unwrap_or(names.len());
        Self { name: name.to_owned(), style: Style::numbered(place), points, joined: true }
    }

    /// Points without a line, in the order of x.
    pub fn scattered(mut self) -> Self {
        self.points.sort_by(|a, b| a.x.total_cmp(&b.x));
        Self { joined: false, ..self }
    }

    /// A level line across the panel.
    pub fn reference(name: &str, y: f64, x: (f64, f64)) -> Self {
        Self::dashed(name, vec![Point::new(x.0, y), Point::new(x.1, y)])
    }

    /// A dashed line in grey.
    pub fn dashed(name: &str, points: Vec<Point>) -> Self {
        Self { name: name.to_owned(), style: Style::reference(), points, joined: true }
    }

    /// Base-10 logarithms of the values; an error bar becomes its half-length above the point.
    pub fn log10(mut self) -> Self {
        for p in &mut self.points {
            p.error = p.error.map(|e| (1.0 + e / p.y).log10());
            p.y = p.y.log10();
        }
        self
    }
}

/// One coordinate system.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    pub title: String,
    pub series: Vec<Series>,
    pub x: Axis,
    pub y: Axis,
}

pub(super) type Pixel = (i32, i32);
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Width of a panel's coordinate system, height of a panel.
const WIDTH: i32 = 330;
const HEIGHT: i32 = 330;
pub(super) const HEAD: i32 = 44;
/// Room around the coordinate system of a panel: left, above, below. To the right it is for the names.
const LEFT: i32 = 88;
const ABOVE: i32 = 34;
const BELOW: i32 = 54;
const LINE_HEIGHT: i32 = 16;
pub(super) const TEXT: f64 = 15.0;
/// Widest character of a name at that size.
pub(super) const CHAR_WIDTH: i32 = 8;
/// Longest name in characters; longer ones are cut.
const NAME_CHARS: usize = 40;
/// Above this many points, markers would run into one another.
const MARKERS_MOST: usize = 32;

/// Draws panels in two columns (one if there is only one panel).
pub fn svg(title: &str, panels: &[Panel]) -> Result<String> {
    let columns = panels.len().clamp(1, 2) as i32;
    let rows = (panels.len() as i32 + columns - 1) / columns;
    let names = panels.iter().flat_map(|p| &p.series).map(|s| shortened(&s.name).chars().count());
    let panel = LEFT + WIDTH + 52 + names.max().unwrap_or(0) as i32 * CHAR_WIDTH;
    let size = (columns * panel, HEAD + rows * HEIGHT);
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (size.0 as u32, size.1 as u32)).into_drawing_area();
        paint(&root, title, panels, (columns, panel)).map_err(|e| anyhow!("plot `{title}`: {e}"))?;
        root.present().map_err(|e| anyhow!("plot `{title}`: {e}"))?;
    }
    Ok(text)
}

pub(super) type Drawn<T = ()> = Result<T, DrawingAreaErrorKind<std::io::Error>>;

fn paint(root: &Area<'_>, title: &str, panels: &[Panel], (columns, width): (i32, i32)) -> Drawn {
    root.fill(&WHITE)?;
    root.draw(&words(title, (20, HEAD / 2 + 2), 22.0, &INK, HPos::Left))?;
    for (i, panel) in panels.iter().enumerate() {
        let (column, row) = (i as i32 % columns, i as i32 / columns);
        let frame = Frame { panel, corner: (column * width, HEAD + row * HEIGHT) };
        paint_axes(root, &frame)?;
        for series in &panel.series {
            paint_series(root, series, &frame)?;
        }
        paint_names(root, &frame)?;
    }
    Ok(())
}

/// A panel and its place in the drawing.
struct Frame<'a> {
    panel: &'a Panel,
    corner: Pixel,
}

impl Frame<'_> {
    fn left(&self) -> i32 {
        self.corner.0 + LEFT
    }

    fn right(&self) -> i32 {
        self.left() + WIDTH
    }

    fn top(&self) -> i32 {
        self.corner.1 + ABOVE
    }

    fn bottom(&self) -> i32 {
        self.corner.1 + HEIGHT - BELOW
    }

    fn x(&self, x: f64) -> i32 {
        place(x, self.panel.x.range, self.left(), self.right())
    }

    fn y(&self, y: f64) -> i32 {
        place(y, self.panel.y.range, self.bottom(), self.top())
    }

    fn pixel(&self, p: &Point) -> Pixel {
        (self.x(p.x), self.y(p.y))
    }
}

/// Where `value` of `range` lies between two pixels; what is outside lies on the edge.
fn place(value: f64, range: (f64, f64), from: i32, to: i32) -> i32 {
    let share = ((value - range.0) / (range.1 - range.0)).clamp(0.0, 1.0);
    from + (share * f64::from(to - from)).round() as i32
}

pub(super) fn words<'a>(
    text: &str,
    at: Pixel,
    size: f64,
    colour: &'a RGBColor,
    side: HPos,
) -> Text<'a, Pixel, String> {
    let style = TextStyle::from(("sans-serif", size).into_font()).color(colour);
    Text::new(text.to_owned(), at, style.pos(Pos::new(side, VPos::Center)))
}

fn paint_axes(root: &Area<'_>, frame: &Frame<'_>) -> Drawn {
    let Panel { title, x, y, .. } = frame.panel;
    let (left, right, top, bottom) = (frame.left(), frame.right(), frame.top(), frame.bottom());
    for (at, label) in &y.ticks {
        let at = frame.y(*at);
        root.draw(&PathElement::new([(left, at), (right, at)], PALE.stroke_width(1)))?;
        root.draw(&words(label, (left - 8, at), TEXT, &INK, HPos::Right))?;
    }
    for (at, label) in &x.ticks {
        let at = frame.x(*at);
        root.draw(&PathElement::new([(at, bottom), (at, bottom + 5)], GREY.stroke_width(1)))?;
        root.draw(&words(label, (at, bottom + 16), TEXT, &INK, HPos::Center))?;
    }
    root.draw(&PathElement::new([(left, top), (left, bottom), (right, bottom)], GREY.stroke_width(1)))?;
    root.draw(&words(title, (left, top - 16), 17.0, &INK, HPos::Left))?;
    root.draw(&words(&x.label, ((left + right) / 2, bottom + 38), TEXT, &GREY, HPos::Center))?;
    let upright = ("sans-serif", TEXT).into_font().transform(FontTransform::Rotate270);
    let style = TextStyle::from(upright).color(&GREY).pos(Pos::new(HPos::Center, VPos::Center));
    root.draw(&Text::new(y.label.clone(), (frame.corner.0 + 18, (top + bottom) / 2), style))
}

fn paint_series(root: &Area<'_>, series: &Series, frame: &Frame<'_>) -> Drawn {
    let colour = series.style.colour;
    let path: Vec<Pixel> = series.points.iter().map(|p| frame.pixel(p)).collect();
    let Some(marker) = series.style.marker else {
        return root.draw(&DashedPathElement::new(path, 6, 4, colour.stroke_width(2)));
    };
    if series.joined {
        root.draw(&PathElement::new(path.clone(), colour.stroke_width(2)))?;
    }
    for (point, at) in series.points.iter().zip(&path) {
        if let Some(error) = point.error.filter(|e| *e > 0.0) {
            let (top, bottom) = (frame.y(point.y + error), frame.y(point.y - error));
            root.draw(&PathElement::new([(at.0, top), (at.0, bottom)], colour.stroke_width(1)))?;
            for end in [top, bottom] {
                root.draw(&PathElement::new([(at.0 - 4, end), (at.0 + 4, end)], colour.stroke_width(1)))?;
            }
        }
        if path.len() <= MARKERS_MOST || !series.joined {
            paint_marker(root, marker, *at, colour)?;
        }
    }
    Ok(())
}

fn paint_marker(root: &Area<'_>, marker: Marker, (x, y): Pixel, colour: RGBColor) -> Drawn {
    let fill = colour.filled();
    match marker {
        Marker::Circle => root.draw(&Circle::new((x, y), 4, fill)),
        Marker::Square => root.draw(&Rectangle::new([(x - 4, y - 4), (x + 4, y + 4)], fill)),
        Marker::Triangle => root.draw(&Polygon::new(vec![(x, y - 5), (x + 5, y + 4), (x - 5, y + 4)], fill)),
        Marker::Diamond => {
            root.draw(&Polygon::new(vec![(x, y - 6), (x + 5, y), (x, y + 6), (x - 5, y)], fill))
        }
        Marker::Cross => {
            root.draw(&PathElement::new([(x - 4, y - 4), (x + 4, y + 4)], colour.stroke_width(2)))?;
            root.draw(&PathElement::new([(x - 4, y + 4), (x + 4, y - 4)], colour.stroke_width(2)))
        }
    }
}

/// Names to the right of the panel, each beside the end of its line as far as there is room.
fn paint_names(root: &Area<'_>, frame: &Frame<'_>) -> Drawn {
    let mut ends: Vec<(&Series, Pixel)> =
        frame.panel.series.iter().filter_map(|s| s.points.last().map(|p| (s, frame.pixel(p)))).collect();
    ends.sort_by_key(|(_, end)| end.1);
    let wanted: Vec<i32> = ends.iter().map(|(_, end)| end.1).collect();
    let edge = frame.right();
    for ((series, end), y) in ends.iter().zip(spread(&wanted, frame.top(), frame.bottom())) {
        let colour = series.style.colour;
        let leader = [(end.0 + 7, end.1), (edge + 6, end.1), (edge + 18, y)];
        root.draw(&DashedPathElement::new(leader, 2, 3, LEADER.stroke_width(1)))?;
        let sample = [(edge + 18, y), (edge + 38, y)];
        match series.style.marker {
            Some(marker) => {
                if series.joined {
                    root.draw(&PathElement::new(sample, colour.stroke_width(2)))?;
                }
                paint_marker(root, marker, (edge + 28, y), colour)?;
            }
            None => root.draw(&DashedPathElement::new(sample, 6, 4, colour.stroke_width(2)))?,
        }
        root.draw(&words(&shortened(&series.name), (edge + 44, y), TEXT, &INK, HPos::Left))?;
    }
    Ok(())
}

fn shortened(name: &str) -> String {
    if name.chars().count() <= NAME_CHARS {
        return name.to_owned();
    }
    let start: String = name.chars().take(NAME_CHARS - 1).collect();
    start + "…"
}

/// Moves sorted places apart to a line height each, within `top ..= bottom` if they fit at all.
fn spread(sorted: &[i32], top: i32, bottom: i32) -> Vec<i32> {
    let mut places: Vec<i32> = Vec::with_capacity(sorted.len());
    for (i, &y) in sorted.iter().enumerate() {
        let free = if i == 0 { top } else { places[i - 1] + LINE_HEIGHT };
        places.push(y.max(free));
    }
    let mut limit = bottom;
    for place in places.iter_mut().rev() {
        *place = (*place).min(limit);
        limit = *place - LINE_HEIGHT;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_never_overlap() {
        assert_eq!(spread(&[10, 100], 0, 200), [10, 100]);
        assert_eq!(spread(&[10, 11, 12], 0, 200), [10, 26, 42]);
        assert_eq!(spread(&[199, 199, 200], 0, 200), [168, 184, 200]);
        assert_eq!(spread(&[], 0, 200), [0; 0]);
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(shortened("window"), "window");
        assert_eq!(shortened(&"x".repeat(40)).chars().count(), NAME_CHARS);
    }

    #[test]
    fn error_bars_of_logarithms_stay_finite() {
        let mut s = Series::new("a", &[], vec![Point { x: 0.0, y: 0.01, error: Some(0.09) }]);
        s = s.log10();
        assert!((s.points[0].y + 2.0).abs() < 1e-12 && (s.points[0].error.unwrap() - 1.0).abs() < 1e-12);
    }
}
