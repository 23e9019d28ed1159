//! A picture of the shipped dashboard: every panel, drawn as SVG from the answers of a Prometheus to its queries.
//!
//! The picture shows what Prometheus returns. It is not a screenshot of Grafana, whose legends and scales differ.

mod canvas;
mod panel;
mod units;

use std::time::Duration;

use serde_json::Value;

use self::{canvas::Canvas, panel::Panel};
use crate::telemetry::prometheus::{Prometheus, dashboard};

/// Points per series: two pixels per point in the widest panel.
const POINTS: f64 = 300.0;

/// Value of `$__rate_interval`: ten scrapes, so that the rates of a short run change visibly.
const RATE_INTERVAL: &str = "10s";

/// Returns the dashboard as SVG, with the data of the given time before now.
pub async fn draw_dashboard(prometheus: &Prometheus, shown: Duration) -> String {
    let dashboard = dashboard();
    let panels: Vec<Panel> = dashboard["panels"].as_array().unwrap().iter().map(Panel::new).collect();
    let mut canvas = Canvas::new(panels.iter().map(Panel::bottom).fold(0.0, f64::max));
    let end = prometheus.now().await;
    let start = end - shown.as_secs_f64();
    for panel in &panels {
        let mut series = Vec::new();
        for target in &panel.targets {
            let query = target.query(RATE_INTERVAL);
            let results = prometheus.query_range(&query, start, end, shown.as_secs_f64() / POINTS).await;
            series.extend(results.iter().map(|result| target.series(result)));
        }
        panel.draw(&mut canvas, &series, (start, end));
    }
    canvas.finish()
}

/// One series of a panel: its legend, and its values by time.
struct Series {
    legend: String,
    points: Vec<(f64, f64)>,
}

/// A query of a panel and its legend.
struct Target {
    expression: String,
    legend: String,
}

// === impl Target ===

impl Target {
    fn new(target: &Value) -> Self {
        let text = |key: &str| target[key].as_str().unwrap_or_default().to_owned();
        Self { expression: text("expr"), legend: text("legendFormat") }
    }

    fn query(&self, rate_interval: &str) -> String {
        crate::telemetry::prometheus::with_all_values(&self.expression, rate_interval)
    }

    fn series(&self, result: &Value) -> Series {
        let mut legend = self.legend.clone();
        for (label, value) in result["metric"].as_object().unwrap() {
            legend = legend.replace(&format!("{{{{{label}}}}}"), value.as_str().unwrap());
        }
        let points = result["values"].as_array().unwrap().iter().map(|pair| {
            let value: f64 = pair[1].as_str().unwrap().parse().unwrap();
            (pair[0].as_f64().unwrap(), value)
        });
        // Prometheus returns NaN for quantiles of a histogram without observations.
        Series { legend, points: points.filter(|(_, value)| value.is_finite()).collect() }
    }
}
