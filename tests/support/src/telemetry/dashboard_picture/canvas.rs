//! Shapes of an SVG.

use std::fmt::Write as _;

/// Width of a column of Grafana's grid; a dashboard has 24 columns.
pub(super) const COLUMN: f64 = 50.0;

/// Height of a row of the grid.
pub(super) const ROW: f64 = 30.0;

/// The font of most browsers and converters.
const FONT: &str = "DejaVu Sans, Verdana, sans-serif";

/// An SVG under construction.
pub(super) struct Canvas {
    svg: String,
}

/// A rectangle.
#[derive(Clone, Copy)]
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

// === impl Canvas ===

impl Canvas {
    /// Starts a picture with this number of grid rows.
    pub(super) fn new(rows: f64) -> Self {
        let (width, height) = (24.0 * COLUMN, rows * ROW);
        let mut svg = String::new();
        writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"{FONT}\" font-size=\"10\">"
        )
        .unwrap();
        writeln!(svg, "<rect width=\"{width}\" height=\"{height}\" fill=\"#f1f2f4\"/>").unwrap();
        Self { svg }
    }

    pub(super) fn finish(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }

    pub(super) fn rectangle(&mut self, area: Area, style: &str) {
        let Area { left, top, width, height } = area;
        writeln!(
            self.svg,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" {style}/>"
        )
        .unwrap();
    }

    pub(super) fn text(&mut self, (x, y): (f64, f64), style: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        writeln!(self.svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{text}</text>").unwrap();
    }

    pub(super) fn line(&mut self, points: &[(f64, f64)], style: &str) {
        let list: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        writeln!(self.svg, "<polyline points=\"{}\" fill=\"none\" {style}/>", list.join(" ")).unwrap();
    }
}
