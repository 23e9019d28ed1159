//! The kinds of panels.

use serde_json::Value;

use super::{
    Series, Target,
    canvas::{Area, COLUMN, Canvas, ROW},
    units::{format_value, marks},
};

/// Colours of series, which differ in lightness too.
const COLORS: [&str; 10] = [
    "#1f60c4", "#e0752d", "#37872d", "#c4162a", "#8f3bb8", "#0a8ea0", "#b8860b", "#e02f8b", "#5a6b7b",
    "#7eb26d",
];

/// Maximum number of legends of a panel: three lines. The legend counts the others.
const MAX_LEGENDS: usize = 6;

/// Width of a character of the legend.
const CHARACTER: f64 = 6.1;

const TITLE: &str = "font-size=\"12\" font-weight=\"bold\" fill=\"#24292e\"";
/// Of a panel of four columns.
const SMALL_TITLE: &str = "font-size=\"10\" font-weight=\"bold\" fill=\"#24292e\"";

const SMALL: &str = "fill=\"#57606a\"";

/// A panel of the dashboard.
pub(super) struct Panel {
    kind: String,
    title: String,
    unit: String,
    area: Area,
    /// Texts and colours of values.
    mappings: Value,
    pub(super) targets: Vec<Target>,
}

// === impl Panel ===

impl Panel {
    pub(super) fn new(panel: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_f64().unwrap());
        let defaults = &panel["fieldConfig"]["defaults"];
        Self {
            kind: text(&panel["type"]),
            title: text(&panel["title"]),
            unit: text(&defaults["unit"]),
            area: Area { left: x * COLUMN, top: y * ROW, width: w * COLUMN, height: h * ROW },
            mappings: defaults["mappings"][0]["options"].clone(),
            targets: panel["targets"].as_array().into_iter().flatten().map(Target::new).collect(),
        }
    }

    /// Returns the number of grid rows above the end of the panel.
    pub(super) fn bottom(&self) -> f64 {
        (self.area.top + self.area.height) / ROW
    }

    /// Draws the panel with its series between two times.
    pub(super) fn draw(&self, canvas: &mut Canvas, series: &[Series], times: (f64, f64)) {
        let Area { left, top, width, height } = self.area;
        if self.kind == "row" {
            canvas.text((left + 10.0, top + 20.0), TITLE, &self.title);
            return;
        }
        let frame = Area { left: left + 4.0, top: top + 4.0, width: width - 8.0, height: height - 8.0 };
        canvas.rectangle(frame, "rx=\"3\" fill=\"#ffffff\" stroke=\"#d0d7de\"");
        let is_narrow = width < 6.0 * COLUMN;
        canvas.text((left + 14.0, top + 22.0), if is_narrow { SMALL_TITLE } else { TITLE }, &self.title);
        assert!(
            series.iter().any(|series| !series.points.is_empty()),
            "the panel {:?} has no data",
            self.title
        );
        match self.kind.as_str() {
            "stat" => self.draw_stat(canvas, series),
            "state-timeline" => self.draw_states(canvas, series, times),
            _ => self.draw_lines(canvas, series, times),
        }
    }

    /// Draws the last value, or the legend if it is the value, as for the release.
    fn draw_stat(&self, canvas: &mut Canvas, series: &[Series]) {
        let Area { left, top, width, height } = self.area;
        let shown: Vec<String> = series
            .iter()
            .filter_map(|series| {
                let value = format_value(series.points.last()?.1, &self.unit);
                Some(if series.legend.is_empty() { value } else { format!("{} ({value})", series.legend) })
            })
            .collect();
        let style = "font-size=\"22\" text-anchor=\"middle\" fill=\"#37872d\"";
        canvas.text((left + width / 2.0, top + height / 2.0 + 16.0), style, &shown.join(", "));
    }

    /// Returns the area of a chart below the title and above `lines` lines of text.
    fn chart(&self, margin: f64, lines: f64) -> Area {
        let Area { left, top, width, height } = self.area;
        Area {
            left: left + margin,
            top: top + 32.0,
            width: width - margin - 20.0,
            height: height - 32.0 - 26.0 - 14.0 * lines,
        }
    }

    fn draw_lines(&self, canvas: &mut Canvas, series: &[Series], times: (f64, f64)) {
        let mut series: Vec<&Series> = series.iter().filter(|series| !series.points.is_empty()).collect();
        let highest =
            |series: &Series| series.points.iter().map(|(_, value)| *value).fold(f64::MIN, f64::max);
        // The series with the highest values have a legend.
        series.sort_by(|a, b| highest(b).total_cmp(&highest(a)));
        let high = series.iter().map(|series| highest(series)).fold(0.0, f64::max);
        // Round numbers of mebibytes are not round numbers of bytes.
        let scale = if self.unit == "bytes" { f64::from(1 << 20) } else { 1.0 };
        let axis: Vec<f64> = marks(0.0, high / scale).into_iter().map(|mark| mark * scale).collect();
        let top_mark = axis.last().copied().unwrap_or(1.0);
        let chart = self.chart(66.0, 3.0);
        for mark in &axis {
            let y = chart.top + chart.height * (1.0 - mark / top_mark);
            canvas.line(&[(chart.left, y), (chart.left + chart.width, y)], "stroke=\"#e4e7eb\"");
            let style = format!("text-anchor=\"end\" {SMALL}");
            canvas.text((chart.left - 6.0, y + 3.5), &style, &format_value(*mark, &self.unit));
        }
        draw_times(canvas, chart, times);
        let place = |(time, value): (f64, f64)| {
            let x = chart.left + chart.width * (time - times.0) / (times.1 - times.0);
            (x, chart.top + chart.height * (1.0 - value / top_mark))
        };
        // The first series is drawn last, on top of the others.
        for (index, series) in series.iter().enumerate().rev() {
            let dash = if series.legend.ends_with(" quorum") { " stroke-dasharray=\"6 4\"" } else { "" };
            let style = format!("stroke=\"{}\" stroke-width=\"1.6\"{dash}", COLORS[index % COLORS.len()]);
            for part in parts(&series.points) {
                let mut points: Vec<(f64, f64)> = part.iter().copied().map(place).collect();
                if let [(x, y)] = points[..] {
                    points.push((x + 1.5, y));
                }
                canvas.line(&points, &style);
            }
        }
        let legends: Vec<(String, &str)> = series
            .iter()
            .take(MAX_LEGENDS)
            .enumerate()
            .map(|(index, series)| (series.legend.clone(), COLORS[index % COLORS.len()]))
            .collect();
        self.draw_legends(canvas, &legends, series.len().saturating_sub(MAX_LEGENDS));
    }

    /// Draws two legends per line, and the number of series without a legend.
    fn draw_legends(&self, canvas: &mut Canvas, legends: &[(String, &str)], others: usize) {
        let Area { left, top, width, height } = self.area;
        let column = (width - 30.0) / 2.0;
        let mut first = top + height - 37.0;
        let mut x = 0.0;
        for (legend, color) in legends {
            let dot = Area { left: left + 16.0 + x, top: first - 4.0, width: 10.0, height: 3.0 };
            canvas.rectangle(dot, &format!("fill=\"{color}\""));
            let fitting = ((column - 20.0) / CHARACTER).floor();
            let is_long = |text: &str| f64::from(u32::try_from(text.chars().count()).unwrap()) > fitting;
            let mut text = legend.clone();
            while is_long(&text) {
                text.pop();
            }
            canvas.text((left + 30.0 + x, first), SMALL, &text);
            if x > 0.0 {
                first += 14.0;
                x = 0.0;
            } else {
                x = column;
            }
        }
        if others > 0 {
            let style = format!("text-anchor=\"end\" {SMALL}");
            let place = (left + width - 14.0, top + 22.0);
            canvas.text(place, &style, &format!("{others} more series without a legend"));
        }
    }

    /// Draws one bar per series, in which each state has its colour.
    fn draw_states(&self, canvas: &mut Canvas, series: &[Series], times: (f64, f64)) {
        let chart = self.chart(110.0, 1.0);
        let mut top = chart.top;
        for series in series {
            let style = format!("text-anchor=\"end\" {SMALL}");
            canvas.text((chart.left - 6.0, top + 17.0), &style, &series.legend);
            let runs = series.points.chunk_by(|(_, a), (_, b)| (a - b).abs() < 0.5);
            let starts: Vec<(f64, f64)> = runs.filter_map(|run| run.first().copied()).collect();
            let ends = starts.iter().skip(1).map(|(time, _)| *time).chain([times.1]);
            for ((start, value), end) in starts.iter().zip(ends) {
                let x = |time: f64| chart.left + chart.width * (time - times.0) / (times.1 - times.0);
                let bar = Area { left: x(*start), top, width: x(end) - x(*start), height: 26.0 };
                let mapping = &self.mappings[format!("{value:.0}")];
                let fill = color(mapping["color"].as_str().unwrap());
                canvas.rectangle(bar, &format!("fill=\"{fill}\" stroke=\"#ffffff\""));
                let text = mapping["text"].as_str().unwrap();
                let width = f64::from(u32::try_from(text.len()).unwrap()) * CHARACTER;
                if bar.width > width + 8.0 {
                    canvas.text((bar.left + 5.0, top + 17.0), "fill=\"#ffffff\"", text);
                }
            }
            top += 34.0;
        }
        draw_times(canvas, chart, times);
        let mappings = self.mappings.as_object().unwrap().values();
        let mut x = self.area.left + 16.0;
        let y = self.area.top + self.area.height - 16.0;
        for mapping in mappings {
            let (text, fill) = (mapping["text"].as_str().unwrap(), color(mapping["color"].as_str().unwrap()));
            let dot = Area { left: x, top: y - 8.0, width: 10.0, height: 10.0 };
            canvas.rectangle(dot, &format!("fill=\"{fill}\""));
            canvas.text((x + 14.0, y), SMALL, text);
            x += 34.0 + f64::from(u32::try_from(text.len()).unwrap()) * CHARACTER;
        }
    }
}

/// Returns the parts of a series without a gap. A series has a gap while Prometheus returns no value, or NaN.
fn parts(points: &[(f64, f64)]) -> impl Iterator<Item = &[(f64, f64)]> {
    let steps = points.windows(2).map(|pair| pair[1].0 - pair[0].0);
    let step = steps.fold(f64::MAX, f64::min);
    points.chunk_by(move |(a, _), (b, _)| b - a < step * 1.5)
}

/// Draws the seconds of the run below a chart.
fn draw_times(canvas: &mut Canvas, chart: Area, (start, end): (f64, f64)) {
    for mark in marks(0.0, end - start).into_iter().filter(|mark| *mark <= end - start) {
        let x = chart.left + chart.width * mark / (end - start);
        let place = (x, chart.top + chart.height + 14.0);
        canvas.text(place, &format!("text-anchor=\"middle\" {SMALL}"), &format!("{mark:.0} s"));
    }
}

/// Returns the colour that Grafana gives to this name.
fn color(name: &str) -> &'static str {
    match name {
        "green" => "#37872d",
        "blue" => "#1f60c4",
        "orange" => "#e0752d",
        "red" => "#c4162a",
        "purple" => "#8f3bb8",
        _ => panic!("the colour {name:?} has no value"),
    }
}
