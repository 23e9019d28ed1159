//! The cost of one guard over the number of clusters that it protects: memory, approvals, denials, calls of the API server,
//! and surveys.
//!
//! The API server is a real one. The members are an in-process double that answers like etcd, at loopback addresses, because a
//! thousand real clusters do not fit on one machine; so the figures contain no time of etcd. Each cluster has three pods, which
//! the bench creates, in a namespace of its own. Each number of clusters has an API server of its own. The reference of each figure
//! is the same quantity with one cluster, in the same run.

// A bench fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod first_approvals;
mod guard;

use std::{fmt::Debug, str::FromStr};

use test_support::{
    bench_table::{self, Row, median_and_p99, ms},
    etcd::fleet::Fleet,
    kubernetes::control_plane::ControlPlane,
    plot_data::{Figure, millis},
};

use self::{
    first_approvals::FirstApprovals,
    guard::{Figures, PeriodicSurveys, measure},
};

/// The variable with the numbers of clusters. The first one is the reference.
const SIZES: &str = "SCALE_CLUSTERS";
const DEFAULT_SIZES: &str = "1 100 1000";

/// With the value 1, the members require a client certificate, which the guard reads from a Secret of each cluster.
const TLS: &str = "SCALE_TLS";

/// The number of clusters to which the bars apply.
const PROMISED: usize = 1000;

/// The promised memory with [`PROMISED`] clusters, in bytes.
const MAX_RESIDENT: u64 = 80_000_000;

/// The promised ratio of the 99th percentiles of a fresh approval, with [`PROMISED`] clusters and with one.
const MAX_APPROVAL_RATIO: f64 = 1.5;

/// The promised duration of a survey of [`PROMISED`] clusters, in seconds.
const MAX_SURVEY: f64 = 30.0;

/// The promised share of one core that a periodic survey of [`PROMISED`] clusters uses while it runs.
const MAX_SHARE: f64 = 0.2;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let sizes = from_environment(SIZES).unwrap_or_else(|| DEFAULT_SIZES.to_owned());
    let sizes: Vec<usize> = sizes.split_whitespace().map(|size| size.parse().expect(SIZES)).collect();
    let with_tls = std::env::var_os(TLS).is_some_and(|value| value == "1");
    let mut measured: Vec<(usize, Figures)> = Vec::new();
    for size in sizes {
        // The p99 of a fresh approval in one cluster was 5 % to 21 % larger in repeated measurements at the same API server
        // (docs/development/benchmarks.md). Each number of clusters therefore has a control plane of its own.
        let control_plane = ControlPlane::start(&[]);
        control_plane.grant_guard_permissions();
        let client = control_plane.client().await;
        let mut fleet =
            if with_tls { Fleet::start_with_tls(client).await } else { Fleet::start(client).await };
        fleet.grow(size).await;
        let figures = measure(&control_plane, &fleet).await;
        eprintln!("{size} clusters: measured");
        measured.push((size, figures));
        let clusters = if with_tls { format!("{size} clusters, mTLS") } else { format!("{size} clusters") };
        bench_table::append(&rows(size, &clusters, &measured[measured.len() - 1].1, &measured[0].1));
    }
    if !with_tls {
        plot(&measured);
    }
}

/// Writes the data of the figure `scale`.
fn plot(measured: &[(usize, Figures)]) {
    let series = |value: &dyn Fn(&Figures) -> f64| {
        let point =
            |(size, figures): &(usize, Figures)| (f64::from(u32::try_from(*size).unwrap()), value(figures));
        measured.iter().map(point).collect()
    };
    let p99 = |times: &bench_table::Times| millis(times.percentile(99));
    Figure::sizes("Cost of one guard", "clusters", "ms, MB")
        .series(
            "memory, MB",
            series(&|figures| f64::from(u32::try_from(figures.resident / 1000).unwrap()) / 1000.0),
        )
        .series("fresh approval, p99, ms", series(&|figures| p99(&figures.warm_approvals)))
        .series("cached denial, p99, ms", series(&|figures| p99(&figures.cached_denials)))
        .series("survey, ms", series(&|figures| millis(figures.survey)))
        .write("scale");
}

/// Returns the rows of a number of clusters, which `clusters` describes.
fn rows(size: usize, clusters: &str, figures: &Figures, one: &Figures) -> Vec<Row> {
    let is_promised = size == PROMISED;
    let row = |quantity: &str, figure: String, reference: String, bar: Option<(String, bool)>| Row {
        quantity: format!("{quantity}, {clusters}"),
        figure,
        reference: String::from("first number of clusters"),
        reference_figure: reference,
        bar: bar.filter(|_| is_promised),
    };
    let mb = |bytes: u64| format!("{}.{} MB", bytes / 1_000_000, bytes / 100_000 % 10);
    let p99 = |times: &bench_table::Times| times.percentile(99).as_secs_f64();
    let ratio = p99(&figures.warm_approvals) / p99(&one.warm_approvals);
    let times = |quantity: &str, times: fn(&Figures) -> &bench_table::Times| {
        row(quantity, median_and_p99(times(figures)), median_and_p99(times(one)), None)
    };
    let first = |quantity: &str, approvals: fn(&Figures) -> &FirstApprovals| {
        row(quantity, approvals(figures).describe(), approvals(one).describe(), None)
    };
    let bare = |figures: &Figures, percent: usize| figures.bare.parts(percent);
    let duration = figures.survey.as_secs_f64();
    let survey = |figures: &Figures| {
        format!("{}, {:.0} % of a core", ms(figures.survey), 100.0 * figures.survey_processor_share())
    };
    let periodic = |PeriodicSurveys { mean, survey, busiest, .. }: PeriodicSurveys| {
        let [mean, survey, busiest] = [mean, survey, busiest].map(|share| share * 100.0);
        format!(
            "{mean:.1} % of a core, {survey:.1} % in the busiest 5 s, {busiest:.1} % in the busiest second"
        )
    };
    vec![
        row("start until ready", ms(figures.start), ms(one.start), None),
        row(
            "memory after a survey and approvals",
            mb(figures.resident),
            mb(one.resident),
            Some((format!("<= {}", mb(MAX_RESIDENT)), figures.resident <= MAX_RESIDENT)),
        ),
        first("fresh approval, first of its cluster", |figures| &figures.after_pauses[0]),
        first("fresh approval, second of its cluster", |figures| &figures.after_pauses[1]),
        first("fresh approval, first of its cluster, without a pause", |figures| &figures.in_a_row[0]),
        first("fresh approval, second of its cluster, without a pause", |figures| &figures.in_a_row[1]),
        row(
            "fresh approval",
            median_and_p99(&figures.warm_approvals),
            median_and_p99(&one.warm_approvals),
            Some((format!("p99 <= {MAX_APPROVAL_RATIO} x"), ratio <= MAX_APPROVAL_RATIO)),
        ),
        times("fresh approval, always in one cluster", |figures| &figures.repeated_approvals),
        times("calls of a fresh approval without the guard", |figures| &figures.bare.all),
        row("calls of a fresh approval without the guard, medians", bare(figures, 50), bare(one, 50), None),
        row("calls of a fresh approval without the guard, p99", bare(figures, 99), bare(one, 99), None),
        times("first approval at another replica after a kill", |figures| &figures.failover),
        times("fresh denial of a leader", |figures| &figures.fresh_denials),
        times("cached denial of a leader", |figures| &figures.cached_denials),
        row("calls of the API server", figures.calls.clone(), one.calls.clone(), None),
        row(
            "survey of all clusters on request",
            survey(figures),
            survey(one),
            Some((format!("<= {MAX_SURVEY} s"), duration <= MAX_SURVEY)),
        ),
        row(
            "duration of a periodic survey",
            format!("{} s", figures.periodic.duration.as_secs()),
            format!("{} s", one.periodic.duration.as_secs()),
            Some((format!("<= {MAX_SURVEY} s"), figures.periodic.duration.as_secs_f64() <= MAX_SURVEY)),
        ),
        row(
            "periodic surveys, each minute",
            periodic(figures.periodic),
            periodic(one.periodic),
            Some((
                format!("<= {:.0} % in the busiest 5 s", MAX_SHARE * 100.0),
                figures.periodic.survey <= MAX_SHARE,
            )),
        ),
    ]
}

/// Parses an optional environment variable.
fn from_environment<T: FromStr<Err: Debug>>(name: &str) -> Option<T> {
    std::env::var(name).ok().map(|text| text.parse().expect(name))
}
