//! Requests to move leadership: the value of the annotation.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use etcd_guard_core::annotations::TOO_LONG;

/// Maximum difference between the time of a request and the clock of a replica. A restored backup contains an older
/// request.
const MAX_REQUEST_AGE: SignedDuration = SignedDuration::from_secs(60);

/// A request in the form `POD@TIME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Requested {
    /// The pod that becomes the leader; `None` for the best voter.
    pub(super) transferee: Option<String>,
    time: Timestamp,
}

// === impl Requested ===

impl Requested {
    /// Parses the value of the annotation. Returns `None` if the value has another form.
    pub(super) fn parse(value: &str) -> Option<Self> {
        if value == TOO_LONG {
            return None;
        }
        let (pod, time) = value.rsplit_once('@')?;
        let is_name = pod
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte));
        let time = time.parse().ok()?;
        let transferee = Some(pod.to_owned()).filter(|pod| !pod.is_empty());
        is_name.then_some(Self { transferee, time })
    }

    /// Whether the request was made a moment ago.
    pub(super) fn is_current(&self, now: Timestamp) -> bool {
        now.duration_since(self.time).abs() <= MAX_REQUEST_AGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the pod of a valid request.
    fn parse(value: &str) -> Option<String> {
        let transferee = Requested::parse(value)?.transferee;
        Some(transferee.unwrap_or_else(|| String::from("any voter")))
    }

    #[test]
    fn reads_pod_and_time() {
        assert_eq!(parse("etcd-1@2026-11-24T10:00:00Z"), Some(String::from("etcd-1")));
        assert_eq!(parse("@2026-11-24T10:00:00Z"), Some(String::from("any voter")));
        for invalid in
            ["", "etcd-1", "etcd-1@", "etcd-1@now", "a@b@2026-11-24T10:00:00Z", "E@2026-11-24T10:00:00Z"]
        {
            assert_eq!(parse(invalid), None, "{invalid}");
        }
        assert_eq!(parse(TOO_LONG), None);
    }

    #[test]
    fn ignores_requests_of_another_time() {
        let requested = Requested::parse("@2026-11-24T10:00:00Z").unwrap();
        let is_current = |time: &str| requested.is_current(time.parse().unwrap());
        assert!(is_current("2026-11-24T10:01:00Z") && is_current("2026-11-24T09:59:00Z"));
        assert!(!is_current("2026-11-24T10:01:01Z"), "a restored backup");
        assert!(!is_current("2026-11-24T09:58:59Z"));
    }
}
