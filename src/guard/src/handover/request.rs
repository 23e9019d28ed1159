//! Requests to act on a cluster: the value of the annotation.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use etcd_guard_core::{annotations::TOO_LONG, etcd::member::MemberId};
use etcd_guard_kubernetes::Action;

/// Maximum difference between the time of a request and the clock of a replica. A restored backup contains an older
/// request.
const MAX_REQUEST_AGE: SignedDuration = SignedDuration::from_secs(60);

/// The value of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Requested {
    pub(super) order: Order,
    time: Timestamp,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// `POD@TIME` or `@TIME`: to move leadership to this pod, or to the best voter.
    Move(Option<String>),
    /// `PERCENT%@TIME` or `@TIME`: to defragment the members whose file has this free share.
    Defragment(u8),
    /// `STEP POD MEMBER@TIME`: one step of the replacement of a member.
    Replace(Replace),
}

/// One step of the replacement of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replace {
    pub(super) phase: Phase,
    /// The pod of the member.
    pub(super) pod: String,
    /// The id of the member that is replaced. A successor has another one.
    pub(super) old: MemberId,
}

/// The steps that only etcd can carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// To remove the member from the list.
    Remove,
    /// To add its successor as a learner.
    Add,
    /// To make the successor a voter.
    Promote,
}

// === impl Requested ===

impl Requested {
    /// Parses the value of the annotation. Returns `None` if the value has another form.
    pub(super) fn parse(action: Action, value: &str) -> Option<Self> {
        if value == TOO_LONG {
            return None;
        }
        let (detail, time) = value.rsplit_once('@')?;
        let time = time.parse().ok()?;
        let order = match action {
            Action::MoveLeader => {
                let pod = Some(detail.to_owned()).filter(|pod| !pod.is_empty());
                is_name(detail).then_some(Order::Move(pod))?
            }
            Action::Defragment if detail.is_empty() => Order::Defragment(0),
            Action::Defragment => {
                let digits = detail.strip_suffix('%')?;
                let is_number = digits.len() <= 3 && digits.bytes().all(|byte| byte.is_ascii_digit());
                let percent = digits.parse().ok().filter(|percent| is_number && *percent <= 100);
                Order::Defragment(percent?)
            }
            Action::Replace => Order::Replace(Replace::parse(detail)?),
        };
        Some(Self { order, time })
    }

    /// Whether the request was made a moment ago.
    pub(super) fn is_current(&self, now: Timestamp) -> bool {
        now.duration_since(self.time).abs() <= MAX_REQUEST_AGE
    }
}

// === impl Replace ===

impl Replace {
    fn parse(detail: &str) -> Option<Self> {
        let mut words = detail.split(' ');
        let phase = match words.next()? {
            "remove" => Phase::Remove,
            "add" => Phase::Add,
            "promote" => Phase::Promote,
            _ => return None,
        };
        let pod = words.next().filter(|pod| !pod.is_empty() && is_name(pod))?.to_owned();
        let old = MemberId::from_hex(words.next()?)?;
        words.next().is_none().then_some(Self { phase, pod, old })
    }
}

/// Whether all characters are those of the name of a pod.
fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the pod of a valid request.
    fn parse(value: &str) -> Option<String> {
        let Order::Move(transferee) = Requested::parse(Action::MoveLeader, value)?.order else {
            panic!("another order")
        };
        Some(transferee.unwrap_or_else(|| String::from("any voter")))
    }

    #[test]
    fn reads_the_free_share() {
        let parse = |value: &str| Requested::parse(Action::Defragment, value).map(|request| request.order);
        assert_eq!(parse("@2026-11-24T10:00:00Z"), Some(Order::Defragment(0)));
        assert_eq!(parse("30%@2026-11-24T10:00:00Z"), Some(Order::Defragment(30)));
        for invalid in [
            "30%",
            "30@2026-11-24T10:00:00Z",
            "101%@2026-11-24T10:00:00Z",
            "+1%@2026-11-24T10:00:00Z",
            "0030%@2026-11-24T10:00:00Z",
        ] {
            assert_eq!(parse(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn reads_the_step_of_a_replacement() {
        let parse = |value: &str| Requested::parse(Action::Replace, value).map(|request| request.order);
        let replace = |phase| Replace { phase, pod: String::from("etcd-1"), old: MemberId(0xa1) };
        for (word, phase) in [("remove", Phase::Remove), ("add", Phase::Add), ("promote", Phase::Promote)] {
            let value = format!("{word} etcd-1 a1@2026-11-24T10:00:00Z");
            assert_eq!(parse(&value), Some(Order::Replace(replace(phase))), "{value}");
        }
        for invalid in [
            "etcd-1 a1",
            "remove etcd-1",
            "remove  a1",
            "remove etcd-1 x1",
            "remove etcd-1 +1",
            "remove etcd-1 a1 b2",
            "delete etcd-1 a1",
        ] {
            assert_eq!(parse(&format!("{invalid}@2026-11-24T10:00:00Z")), None, "{invalid}");
        }
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
        let requested = Requested::parse(Action::MoveLeader, "@2026-11-24T10:00:00Z").unwrap();
        let is_current = |time: &str| requested.is_current(time.parse().unwrap());
        assert!(is_current("2026-11-24T10:01:00Z") && is_current("2026-11-24T09:59:00Z"));
        assert!(!is_current("2026-11-24T10:01:01Z"), "a restored backup");
        assert!(!is_current("2026-11-24T09:58:59Z"));
    }
}
