//! Colours and markers.

use plotters::style::RGBColor;

/// Colours that people with any kind of colour vision tell apart, none too pale for white paper; after Okabe and
/// Ito (2008) without their yellow, with three of Paul Tol's.
const COLOURS: [RGBColor; 9] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(136, 34, 85),
    RGBColor(153, 153, 51),
    RGBColor(51, 34, 136),
];

/// Text.
pub const INK: RGBColor = RGBColor(34, 34, 34);
/// Axes and secondary text.
pub const GREY: RGBColor = RGBColor(110, 110, 110);
/// Grid lines.
pub const PALE: RGBColor = RGBColor(228, 228, 228);
/// Lines from the end of a series to its name.
pub const LEADER: RGBColor = RGBColor(190, 190, 190);

/// Shape of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    Cross,
}

const MARKERS: [Marker; 5] =
    [Marker::Circle, Marker::Square, Marker::Triangle, Marker::Diamond, Marker::Cross];

/// How a series looks: the same in all plots of a report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Style {
    /// Of line and marker.
    pub colour: RGBColor,
    /// Of points; the reference has none.
    pub marker: Option<Marker>,
}

impl Style {
    /// The look of series `i`. Colour and marker have periods without a common divisor: 45 looks.
    pub fn numbered(i: usize) -> Self {
        Self { colour: COLOURS[i % COLOURS.len()], marker: Some(MARKERS[i % MARKERS.len()]) }
    }

    /// The look of the reference: a dashed line in grey.
    pub fn reference() -> Self {
        Self { colour: GREY, marker: None }
    }
}
