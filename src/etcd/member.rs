//! What a member says of itself and of its cluster.

use std::fmt;

/// A member's id, as `header.member_id` and the member list give it. Shown in hexadecimal, as etcdctl does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// A cluster's id, as `header.cluster_id` gives it. Shown in hexadecimal, as etcdctl does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub u64);

/// A member's answer to `Maintenance.Status`: its own belief, which proves neither quorum nor leadership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Who really answered.
    pub member_id: MemberId,
    /// The cluster it belongs to.
    pub cluster_id: ClusterId,
    /// Whom it takes for the leader; a dead leader is named for up to two seconds.
    pub leader: Option<MemberId>,
    /// Its raft term; of contradicting answers the higher term is right.
    pub term: u64,
    /// The last index that it has applied (zero before 3.4).
    pub applied_index: u64,
    /// Its release, for instance `3.6.16`.
    pub version: String,
    /// Whether it is a learner: it has no vote.
    pub is_learner: bool,
    /// Alarms that are raised anywhere in the cluster, as this member knows them.
    pub alarms: Vec<Alarm>,
}

/// An alarm that is raised at a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// At which member; zero where etcd could not tell which.
    pub member_id: MemberId,
    /// What is wrong there.
    pub kind: AlarmKind,
}

/// The kinds of alarm that bear on a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmKind {
    /// The member's data differs from its peers'.
    Corrupt,
    /// The cluster refuses writes until space is freed; votes are not touched by it.
    NoSpace,
}

/// A member as the member list names it; it may never have started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedMember {
    /// Its id, which is unique.
    pub id: MemberId,
    /// Its name, which need not be unique, and is empty until it has started.
    pub name: String,
    /// Where its peers reach it.
    pub peer_urls: Vec<String>,
    /// Where clients are told to reach it; empty until it has started, and possibly a Service that all members share.
    pub client_urls: Vec<String>,
    /// Whether it is a learner: it has no vote.
    pub is_learner: bool,
}

// === impl Status ===

impl Status {
    /// `None` without a header, which every server sends.
    pub(super) fn read(response: &etcd_client::StatusResponse) -> Option<Self> {
        let header = response.header()?;
        Some(Self {
            member_id: MemberId(header.member_id()),
            cluster_id: ClusterId(header.cluster_id()),
            leader: Some(response.leader()).filter(|leader| *leader != 0).map(MemberId),
            term: response.raft_term(),
            applied_index: response.raft_applied_index(),
            version: response.version().to_owned(),
            is_learner: response.is_learner(),
            alarms: response.errors().iter().filter_map(|text| Alarm::parse(text)).collect(),
        })
    }
}

// === impl Alarm ===

impl Alarm {
    /// Reads `memberID:10276657743932975437 alarm:CORRUPT ` of `Status.errors`: the id in decimal. How many blanks stand
    /// between and at the end differs by release, since 3.7 even by build (protobuf does not promise its text form).
    /// Other texts ("etcdserver: no leader") are no alarms.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let id = words.next()?.strip_prefix("memberID:")?;
        let kind = match words.next()?.strip_prefix("alarm:")? {
            "CORRUPT" => AlarmKind::Corrupt,
            "NOSPACE" => AlarmKind::NoSpace,
            _ => return None,
        };
        Some(Self { member_id: MemberId(id.parse().ok()?), kind })
    }
}

// === impl ListedMember ===

impl ListedMember {
    pub(super) fn read(member: &etcd_client::Member) -> Self {
        Self {
            id: MemberId(member.id()),
            name: member.name().to_owned(),
            peer_urls: member.peer_urls().to_vec(),
            client_urls: member.client_urls().to_vec(),
            is_learner: member.is_learner(),
        }
    }

    /// Whether it has ever published itself. A voter counts for the quorum before that.
    #[must_use]
    pub fn has_started(&self) -> bool {
        !self.name.is_empty()
    }
}

// === impl MemberId, ClusterId ===

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::{Alarm, AlarmKind, MemberId};

    #[test]
    fn alarms_are_read_from_status_errors() {
        let alarm = Alarm::parse("memberID:10276657743932975437 alarm:CORRUPT ");
        assert_eq!(
            alarm,
            Some(Alarm { member_id: MemberId(10_276_657_743_932_975_437), kind: AlarmKind::Corrupt })
        );
        let alarm = Alarm::parse("memberID:7  alarm:NOSPACE");
        assert_eq!(alarm, Some(Alarm { member_id: MemberId(7), kind: AlarmKind::NoSpace }));
    }

    #[test]
    fn other_errors_are_no_alarms() {
        assert_eq!(Alarm::parse("etcdserver: no leader"), None);
        assert_eq!(Alarm::parse("memberID:x alarm:CORRUPT"), None);
        assert_eq!(Alarm::parse("memberID:7 alarm:SOMETHING_NEW"), None);
    }
}
