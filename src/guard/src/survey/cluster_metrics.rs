//! Metrics of the last survey: its time and, with `--cluster-metrics`, the state of each cluster.
//!
//! The labels `namespace` and `cluster` are the only ones on the metrics page that users choose. The metrics are therefore
//! disabled by default, contain a limited number of clusters, and only those of the last survey. Names are escaped and cut
//! like in all other outputs.

use std::{
    collections::BTreeMap,
    fmt,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Registry,
};
use tokio::sync::watch;

use etcd_guard_api::{ClusterStatus, Role};
use etcd_guard_core::{
    cluster_state::ClusterState,
    escape::{MAX_NAME_CHARS, to_bounded_line},
};

/// Metrics of the last survey. A scrape reads the result of one survey, never parts of two. Clones share the values.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterMetrics {
    last: Arc<watch::Sender<Arc<LastSurvey>>>,
}

/// The exported results of a survey.
#[derive(Debug, Default)]
struct LastSurvey {
    /// Seconds since the epoch at the end of the survey; `None` before the first finished survey.
    finished_at: Option<i64>,
    /// The clusters; `None` without `--cluster-metrics`.
    clusters: Option<NamedClusters>,
}

#[derive(Debug, Default)]
struct NamedClusters {
    by_name: BTreeMap<ClusterLabels, ClusterValues>,
    omitted: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct ClusterLabels {
    namespace: String,
    cluster: String,
}

/// The values of a cluster. Unknown numbers have no series.
#[derive(Debug)]
struct ClusterValues {
    state: ClusterState,
    voters: Option<i64>,
    healthy_voters: Option<i64>,
    quorum: Option<i64>,
    has_leader: bool,
    term: Option<i64>,
}

// === impl ClusterMetrics ===

impl ClusterMetrics {
    /// Registers the metrics in `registry`. They have no samples before the first survey.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }

    /// Replaces the results by those of a survey. `max_named` is the maximum number of clusters with a name, or `None` to
    /// export no names. A survey that reached its time limit is not finished, and does not change the timestamp.
    pub(crate) fn record<'a>(
        &self,
        clusters: impl IntoIterator<Item = (&'a ClusterStatus, ClusterState)>,
        max_named: Option<usize>,
        is_finished: bool,
    ) {
        let clusters = max_named.map(|max| NamedClusters::new(clusters, max));
        let now = is_finished.then(unix_seconds);
        self.last.send_modify(|last| {
            *last = Arc::new(LastSurvey { finished_at: now.or(last.finished_at), clusters });
        });
    }
}

impl Collector for ClusterMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let last = Arc::clone(&self.last.borrow());
        if let Some(finished_at) = last.finished_at {
            let help = "Time at which the last survey of all guarded clusters finished";
            let name = "survey_timestamp_seconds";
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(finished_at).encode(metric)?;
        }
        last.clusters.as_ref().map_or(Ok(()), |clusters| clusters.encode(&mut encoder))
    }
}

// === impl NamedClusters ===

impl NamedClusters {
    /// Keeps the first `max` clusters by namespace and name, so that the same clusters remain from survey to survey.
    fn new<'a>(clusters: impl IntoIterator<Item = (&'a ClusterStatus, ClusterState)>, max: usize) -> Self {
        let mut found = Self::default();
        for (status, state) in clusters {
            // Two names that are equal after the cut would be the same series.
            if found.by_name.insert(ClusterLabels::new(status), ClusterValues::new(status, state)).is_some() {
                found.omitted = found.omitted.saturating_add(1);
            }
            if found.by_name.len() > max {
                drop(found.by_name.pop_last());
                found.omitted = found.omitted.saturating_add(1);
            }
        }
        found
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Guarded clusters of the last survey that the metrics with names omit (limit of --cluster-metrics)";
        let metric = encoder.encode_descriptor("clusters_omitted", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::try_from(self.omitted).unwrap_or(i64::MAX)).encode(metric)?;

        let help =
            "State of each guarded cluster in the last survey: 1 for its state, 0 for the other states";
        let mut metric = encoder.encode_descriptor("cluster_state", help, None, MetricType::Gauge)?;
        for (ClusterLabels { namespace, cluster }, values) in &self.by_name {
            for state in ClusterState::ALL {
                let labels = [
                    ("namespace", namespace.as_str()),
                    ("cluster", cluster.as_str()),
                    ("state", state.as_str()),
                ];
                ConstGauge::new(i64::from(values.state == state)).encode(metric.encode_family(&labels)?)?;
            }
        }
        let mut encode = |name, help, value: fn(&ClusterValues) -> Option<i64>| -> fmt::Result {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (labels, values) in &self.by_name {
                if let Some(value) = value(values) {
                    ConstGauge::new(value).encode(metric.encode_family(labels)?)?;
                }
            }
            Ok(())
        };
        encode("cluster_voters", "Voters in the member list of the cluster", |values| values.voters)?;
        encode("cluster_healthy_voters", "Voters that the last survey proved healthy", |values| {
            values.healthy_voters
        })?;
        encode("cluster_quorum", "Voters in a majority of the cluster", |values| values.quorum)?;
        encode("cluster_has_leader", "Whether the healthy members agree on a leader: 1 or 0", |values| {
            Some(i64::from(values.has_leader))
        })?;
        encode("cluster_term", "Raft term of the cluster, which each election increases", |values| {
            values.term
        })
    }
}

// === impl ClusterLabels ===

impl ClusterLabels {
    fn new(status: &ClusterStatus) -> Self {
        let bounded = |name: &str| to_bounded_line(name, MAX_NAME_CHARS);
        Self { namespace: bounded(&status.namespace), cluster: bounded(&status.name) }
    }
}

// === impl ClusterValues ===

impl ClusterValues {
    fn new(status: &ClusterStatus, state: ClusterState) -> Self {
        let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        Self {
            state,
            voters: status.voters.map(signed),
            healthy_voters: status.healthy.map(signed),
            quorum: status.quorum.map(signed),
            has_leader: status.members.iter().any(|member| member.role == Role::Leader),
            term: status.term.map(|term| i64::try_from(term).unwrap_or(i64::MAX)),
        }
    }
}

fn unix_seconds() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::survey::status::cluster_status;
    use etcd_guard_core::{
        assess::cluster_summary::ClusterSummary,
        snapshot::{Snapshot, fixture::cluster},
    };

    fn named(namespace: &str, name: &str, snapshot: &Snapshot) -> ClusterStatus {
        let status = cluster_status(snapshot, &ClusterSummary::new(snapshot), &[], Vec::new(), Vec::new());
        ClusterStatus { namespace: namespace.to_owned(), name: name.to_owned(), ..status }
    }

    fn page(metrics: &ClusterMetrics) -> Vec<String> {
        let mut registry = Registry::with_prefix("etcd_guard");
        metrics.register(&mut registry);
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        page.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    /// Records these clusters as clusters without a spare voter.
    fn record(metrics: &ClusterMetrics, clusters: &[ClusterStatus], max: Option<usize>) {
        metrics.record(clusters.iter().map(|status| (status, ClusterState::NoSpare)), max, true);
    }

    #[test]
    fn exports_one_state_and_the_numbers_of_a_cluster() {
        let metrics = ClusterMetrics::default();
        assert_eq!(page(&metrics), [""; 0], "no sample before the first survey");
        record(&metrics, &[named("prod", "etcd", &cluster(3).crash(1))], Some(500));
        let page = page(&metrics);
        assert!(page[0].starts_with("etcd_guard_survey_timestamp_seconds 1"), "{page:?}");
        let series = |name: &str| format!("etcd_guard_cluster_{name}{{namespace=\"prod\",cluster=\"etcd\"}}");
        let state = |state: &str, value| {
            let labels = format!("namespace=\"prod\",cluster=\"etcd\",state=\"{state}\"");
            format!("etcd_guard_cluster_state{{{labels}}} {value}")
        };
        let expected = [
            String::from("etcd_guard_clusters_omitted 0"),
            state("spare", 0),
            state("no_spare", 1),
            state("single_member", 0),
            state("no_quorum", 0),
            state("unknown", 0),
            format!("{} 3", series("voters")),
            format!("{} 2", series("healthy_voters")),
            format!("{} 2", series("quorum")),
            format!("{} 1", series("has_leader")),
        ];
        assert_eq!(page[1..11], expected);
        assert!(page[11].starts_with(&series("term")), "{page:?}");
        assert_eq!(page.len(), 12);
    }

    #[test]
    fn clusters_without_an_answer_have_no_numbers() {
        let metrics = ClusterMetrics::default();
        record(&metrics, &[named("prod", "etcd", &cluster(3).crash(0).crash(1).crash(2))], Some(500));
        let page = page(&metrics);
        assert!(
            page.contains(&String::from(
                "etcd_guard_cluster_has_leader{namespace=\"prod\",cluster=\"etcd\"} 0"
            ))
        );
        assert!(!page.iter().any(|line| line.contains("voters") || line.contains("quorum{")), "{page:?}");
    }

    #[test]
    fn names_are_exported_only_on_demand() {
        let metrics = ClusterMetrics::default();
        record(&metrics, &[named("prod", "etcd", &cluster(3))], None);
        assert_eq!(page(&metrics).len(), 1);
    }

    #[test]
    fn removed_clusters_disappear() {
        let metrics = ClusterMetrics::default();
        record(&metrics, &[named("prod", "a", &cluster(3)), named("prod", "b", &cluster(3))], Some(500));
        record(&metrics, &[named("prod", "b", &cluster(3))], Some(500));
        assert!(!page(&metrics).iter().any(|line| line.contains("cluster=\"a\"")));
        assert!(page(&metrics).iter().any(|line| line.contains("cluster=\"b\"")));
    }

    #[test]
    fn unfinished_surveys_keep_the_timestamp() {
        let metrics = ClusterMetrics::default();
        metrics.record([], None, false);
        assert_eq!(page(&metrics), [""; 0]);
        metrics.record([], None, true);
        let finished = page(&metrics);
        metrics.record([], None, false);
        assert_eq!(page(&metrics), finished);
    }

    #[test]
    fn limit_keeps_first_names_and_counts_the_others() {
        let metrics = ClusterMetrics::default();
        let clusters: Vec<_> =
            (0..20).rev().map(|n| named("prod", &format!("etcd-{n:02}"), &cluster(1))).collect();
        record(&metrics, &clusters, Some(3));
        let page = page(&metrics);
        assert!(page.contains(&String::from("etcd_guard_clusters_omitted 17")), "{page:?}");
        let voters = page
            .iter()
            .filter_map(|line| line.strip_prefix("etcd_guard_cluster_voters{namespace=\"prod\",cluster="));
        assert_eq!(voters.collect::<Vec<_>>(), ["\"etcd-00\"} 1", "\"etcd-01\"} 1", "\"etcd-02\"} 1"]);
    }

    #[test]
    fn long_names_are_cut_and_equal_names_counted_once() {
        let metrics = ClusterMetrics::default();
        let long = |end: &str| format!("{}{end}", "a\"\n".repeat(200));
        record(
            &metrics,
            &[named("prod", &long("x"), &cluster(3)), named("prod", &long("y"), &cluster(3))],
            Some(500),
        );
        let page = page(&metrics);
        assert!(page.contains(&String::from("etcd_guard_clusters_omitted 1")), "{page:?}");
        assert_eq!(page.iter().filter(|line| line.starts_with("etcd_guard_cluster_voters")).count(), 1);
        assert!(page.iter().all(|line| line.chars().count() < 2 * MAX_NAME_CHARS), "{page:?}");
    }
}
