//! Values with the units of the dashboard, and the marks of an axis.

/// Returns a value with its unit.
pub(super) fn format_value(value: f64, unit: &str) -> String {
    match unit {
        "s" if value >= 2.0 * 86_400.0 => format!("{:.1} days", value / 86_400.0),
        "s" if value >= 7_200.0 => format!("{:.1} h", value / 3_600.0),
        "s" if value >= 1.0 || value == 0.0 => format!("{} s", plain(value)),
        "s" => format!("{} ms", plain(value * 1e3)),
        "bytes" => format!("{} MiB", plain(value / f64::from(1 << 20))),
        _ => plain(value),
    }
}

/// Returns a number with at most three significant digits below 100.
fn plain(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Returns the marks of an axis from 0 or `low` to at least `high`: at most five round numbers.
pub(super) fn marks(low: f64, high: f64) -> Vec<f64> {
    let span = if high > low { high - low } else { 1.0 };
    let power = 10_f64.powf((span / 4.0).log10().floor());
    let step =
        [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| span / step <= 4.0);
    let step = step.unwrap_or(span);
    let first = (low / step).floor() * step;
    let mut marks = vec![first];
    while marks.last().is_some_and(|mark| *mark < high - step * 1e-6) {
        let last = marks.last().copied().unwrap_or(first);
        marks.push(last + step);
    }
    if marks.len() == 1 {
        marks.push(first + step);
    }
    marks
}
