//! Release and clock of the API server.

use super::{
    reader::Unread,
    report::{Line, State},
};
use etcd_guard_core::objects::api_server_version::ApiServerVersion;

/// The oldest supported release, as in the chart's `kubeVersion`.
const OLDEST: ApiServerVersion = ApiServerVersion { major: 1, minor: 30 };

/// Difference of clocks without effects, in seconds. The API server's time has a resolution of one second.
const MAX_OFFSET: i64 = 5;

/// Difference from which times of break-glass annotations and certificates are not effective as written, in seconds.
const MAX_TOLERABLE_OFFSET: i64 = 300;

/// The difference of one clock from the clock of the API server.
#[derive(Clone, Debug)]
pub(super) struct ClockOffset {
    /// For instance `replica etcd-guard-0`.
    pub(super) subject: String,
    /// Whether it is the clock of a replica. The clock of the user's machine affects nothing but this program.
    pub(super) is_replica: bool,
    pub(super) seconds: i64,
}

/// Compares the release with the supported range.
pub(super) fn version(major: &str, minor: &str, kubectl: &str) -> Line {
    let oldest = format!("{}.{}", OLDEST.major, OLDEST.minor);
    match ApiServerVersion::parse(major, minor) {
        None => Line::warning(
            "api-server",
            format!("the version {major}.{minor} cannot be parsed; supported: {oldest} or later"),
            format!("{kubectl} version"),
        ),
        Some(version) if version < OLDEST => Line::failure(
            "api-server",
            format!("Kubernetes {}.{} is older than {oldest}", version.major, version.minor),
            format!("upgrade the control plane to {oldest} or later, then check: {kubectl} version"),
        ),
        Some(version) => {
            let ApiServerVersion { major, minor } = version;
            Line::ok("api-server", format!("Kubernetes {major}.{minor} (supported: {oldest} or later)"))
        }
    }
}

/// Compares clocks with the clock of the API server. `unread` are the causes why the clock of a replica is unknown, and `pods` is
/// the command that lists the replicas. `unread_pods` is why nobody knows which replicas there are.
pub(super) fn clock(
    offsets: &[ClockOffset],
    unread: &[String],
    unread_pods: Option<&Unread>,
    (kubectl, pods): (&str, &str),
) -> Line {
    let state = |offset: &ClockOffset| match offset.seconds.abs() {
        ..=MAX_OFFSET => State::Ok,
        seconds if offset.is_replica && seconds > MAX_TOLERABLE_OFFSET => State::Failure,
        _ => State::Warning,
    };
    let mut findings: Vec<_> = offsets
        .iter()
        .filter(|offset| state(offset) > State::Ok)
        .map(|offset| {
            let ClockOffset { subject, seconds, .. } = offset;
            let direction = if *seconds > 0 { "ahead of" } else { "behind" };
            let text = format!("the clock of {subject} is {} s {direction} the API server's", seconds.abs());
            (state(offset), text)
        })
        .collect();
    let is_any_wrong = !findings.is_empty();
    findings.extend(unread.iter().map(|cause| (State::Warning, format!("unknown: {cause}"))));
    if findings.is_empty() && !offsets.iter().any(|offset| offset.is_replica) {
        let none_ready = Unread::new("no replica is ready", pods);
        return Line::not_checked("clock", unread_pods.unwrap_or(&none_ready));
    }
    let subjects: Vec<&str> = offsets.iter().map(|offset| offset.subject.as_str()).collect();
    let message = format!("at most {MAX_OFFSET} s between the API server and {}", subjects.join(", "));
    let remedy = if is_any_wrong {
        format!("synchronize the clocks of these machines by NTP: {kubectl} get nodes -o wide")
    } else {
        pods.to_owned()
    };
    Line::from_findings("clock", "", &message, &findings, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fails_for_releases_before_the_oldest_supported() {
        let state = |major, minor| version(major, minor, "kubectl").state;
        assert_eq!(state("1", "29"), State::Failure);
        assert_eq!(state("1", "30"), State::Ok);
        assert_eq!(state("1", "34+"), State::Ok);
        assert_eq!(state("one", "34"), State::Warning);
        let chart = std::fs::read_to_string(concat!(
            concat!(env!("CARGO_MANIFEST_DIR"), "/../.."),
            "/deploy/chart/etcd-guard/Chart.yaml"
        ))
        .unwrap();
        assert!(chart.contains(&format!("kubeVersion: \">={}.{}.0-0\"", OLDEST.major, OLDEST.minor)));
    }

    #[test]
    fn compares_each_clock_with_the_api_server() {
        let offset = |is_replica, seconds| ClockOffset {
            subject: String::from(if is_replica { "replica a" } else { "this machine" }),
            is_replica,
            seconds,
        };
        let state = |offsets: &[ClockOffset]| clock(offsets, &[], None, ("kubectl", "pods")).state;
        assert_eq!(state(&[offset(false, 5), offset(true, -5)]), State::Ok);
        assert_eq!(state(&[offset(true, 6)]), State::Warning);
        assert_eq!(state(&[offset(true, -301)]), State::Failure);
        assert_eq!(state(&[offset(false, 86_400), offset(true, 0)]), State::Warning);
        let none = clock(&[offset(false, 0)], &[], None, ("kubectl", "pods"));
        assert_eq!(
            (none.message.as_str(), none.remedy.as_deref()),
            ("not checked: no replica is ready", Some("pods"))
        );
        let unread = [String::from("replica b: refused")];
        assert_eq!(
            clock(&[offset(true, 0)], &unread, None, ("kubectl", "pods")).remedy.as_deref(),
            Some("pods")
        );
        let line = clock(&[offset(false, 0), offset(true, -301)], &[], None, ("kubectl", "pods"));
        assert_eq!(line.message, "the clock of replica a is 301 s behind the API server's");
    }
}
