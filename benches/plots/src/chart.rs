//! The drawing of a figure.

use anyhow::{anyhow, ensure};
use plotters::{coord::Shift, prelude::*};

use crate::{Figure, Kind, Series};

/// Size of a figure in pixels.
const SIZE: (u32, u32) = (760, 380);

/// Colours that readers with colour blindness can distinguish (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// Number of steps in which a distribution is drawn.
const STEPS: usize = 400;

/// Ratio of the height of a figure of strips to the height of its highest point.
const LEGEND_SPACE: f64 = 1.4;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Returns the figure as SVG.
pub(crate) fn svg(figure: &Figure) -> anyhow::Result<String> {
    let values = || figure.series.iter().flat_map(|series| &series.points);
    ensure!(figure.series.iter().all(|series| !series.points.is_empty()), "a series has no points");
    ensure!(values().all(|(x, y)| x.is_finite() && y.is_finite()), "a value is not finite");
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        match figure.kind {
            Kind::Distribution => distribution(&area, figure)?,
            Kind::Sizes => sizes(&area, figure)?,
            Kind::Strips => strips(&area, figure)?,
            Kind::Points => points(&area, figure)?,
        }
        area.present().map_err(failed)?;
    }
    Ok(text)
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}

/// Returns the lowest and the highest of the values.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}

/// Returns a range for a logarithmic axis.
fn logarithmic(values: impl Iterator<Item = f64>) -> anyhow::Result<std::ops::Range<f64>> {
    let (low, high) = bounds(values);
    ensure!(low > 0.0, "value {low} is not positive, and the axis is logarithmic");
    Ok(low / 1.2..high * 1.2)
}

/// Returns a range for a linear axis from zero.
fn linear(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (_, high) = bounds(values);
    0.0..(high * 1.08).max(1.0)
}

/// Draws the axes with these ranges, and each series with the elements that `$elements` returns. This is a macro because the
/// types of linear and of logarithmic axes differ.
macro_rules! draw {
    ($area:expr, $figure:expr, $x:expr, $y:expr, $labels:expr, |$chart:ident, $index:ident, $series:ident, $colour:ident| $elements:block) => {{
        let (area, figure): (&Area<'_>, &Figure) = ($area, $figure);
        let mut $chart = ChartBuilder::on(area)
            .caption(&figure.title, ("sans-serif", 17))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d($x, $y)
            .map_err(failed)?;
        $chart
            .configure_mesh()
            .x_desc(&figure.x)
            .x_labels(max_labels(figure.kind))
            .y_desc(&figure.y)
            .x_label_formatter(&$labels)
            .y_label_formatter(&|value| number(*value))
            .light_line_style(WHITE)
            .draw()
            .map_err(failed)?;
        for (($index, $series), $colour) in figure.series.iter().enumerate().zip(COLOURS.into_iter().cycle())
        {
            let drawn = $elements.map_err(failed)?;
            drawn
                .label(&$series.name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 14, y + 4)], $colour.filled()));
        }
        $chart
            .configure_series_labels()
            .position(legend_position(figure.kind))
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()
            .map_err(failed)?;
    }};
}

/// Returns the corner of the legend. Lines over sizes rise to the right, and distributions end at the top right.
fn legend_position(kind: Kind) -> SeriesLabelPosition {
    match kind {
        Kind::Sizes => SeriesLabelPosition::UpperLeft,
        Kind::Distribution => SeriesLabelPosition::LowerRight,
        Kind::Strips | Kind::Points => SeriesLabelPosition::UpperRight,
    }
}

/// Returns the largest number of labels of the horizontal axis. A logarithmic axis with fewer labels lacks those of a whole decade.
fn max_labels(kind: Kind) -> usize {
    match kind {
        Kind::Distribution | Kind::Sizes => 20,
        Kind::Strips | Kind::Points => 10,
    }
}

fn distribution(area: &Area<'_>, figure: &Figure) -> anyhow::Result<()> {
    let x = logarithmic(figure.series.iter().flat_map(values))?;
    // The axis has labels only for decades that begin on it.
    let x = 10.0_f64.powf(x.start.log10().floor())..x.end;
    draw!(
        area,
        figure,
        x.log_scale(),
        0.0..100.0,
        |value| number(*value),
        |chart, _index, series, colour| {
            let mut sorted: Vec<f64> = values(series).collect();
            sorted.sort_by(f64::total_cmp);
            let step = |step: usize| {
                let place = (sorted.len() - 1) * step / STEPS;
                let share = 100.0 * fraction(place + 1, sorted.len());
                sorted.get(place).map(|value| (*value, share))
            };
            chart.draw_series(LineSeries::new((0..=STEPS).filter_map(step), colour.stroke_width(2)))
        }
    );
    Ok(())
}

fn sizes(area: &Area<'_>, figure: &Figure) -> anyhow::Result<()> {
    let x = logarithmic(figure.series.iter().flat_map(values))?;
    let y = logarithmic(figure.series.iter().flat_map(|series| series.points.iter().map(|(_, y)| *y)))?;
    draw!(
        area,
        figure,
        x.log_scale(),
        y.log_scale(),
        |value| number(*value),
        |chart, _index, series, colour| {
            let style = colour.stroke_width(2);
            chart.draw_series(LineSeries::new(series.points.iter().copied(), style).point_size(3))
        }
    );
    Ok(())
}

fn strips(area: &Area<'_>, figure: &Figure) -> anyhow::Result<()> {
    // The legend is above all points.
    let y = linear(figure.series.iter().flat_map(values).map(|value| value * LEGEND_SPACE));
    let width = fraction(figure.series.len(), 1);
    let no_label = |_: &f64| String::new();
    draw!(area, figure, 0.0..width, y, no_label, |chart, index, series, colour| {
        let count = series.points.len();
        let points = values(series).enumerate().map(|(place, value)| {
            let offset = 0.2 + 0.6 * fraction(place, count);
            Circle::new((fraction(index, 1) + offset, value), 3, colour.filled())
        });
        chart.draw_series(points.collect::<Vec<_>>())
    });
    Ok(())
}

fn points(area: &Area<'_>, figure: &Figure) -> anyhow::Result<()> {
    let x = linear(figure.series.iter().flat_map(values));
    let y = linear(figure.series.iter().flat_map(|series| series.points.iter().map(|(_, y)| *y)));
    draw!(area, figure, x, y, |value| number(*value), |chart, _index, series, colour| {
        let points = series.points.iter().map(|point| Circle::new(*point, 2, colour.filled()));
        chart.draw_series(points.collect::<Vec<_>>())
    });
    Ok(())
}

/// Returns the first coordinates.
fn values(series: &Series) -> impl Iterator<Item = f64> {
    series.points.iter().map(|(x, _)| *x)
}

/// Returns the quotient of two numbers of values.
fn fraction(count: usize, of: usize) -> f64 {
    let float = |number: usize| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    float(count) / float(of)
}

/// Formats a value of an axis.
fn number(value: f64) -> String {
    if value.fract().abs() < 1e-9 || value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else {
        format!("{value}")
    }
}
