//! A member's view of itself and of its cluster.

use std::fmt;

use crate::escape::{MAX_NAME_CHARS, to_bounded_line};

/// Maximum length of a version in characters. etcd's own versions have at most 20.
const MAX_VERSION_CHARS: usize = 64;

/// A member's id, from `header.member_id` or the member list. Displayed in hexadecimal, as by etcdctl.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// A cluster's id, from `header.cluster_id`. Displayed in hexadecimal, as by etcdctl.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub u64);

/// A member's response to `Maintenance.Status`: its local view, which proves neither quorum nor leadership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The member that responded.
    pub member_id: MemberId,
    /// The cluster of the member.
    pub cluster_id: ClusterId,
    /// The leader in the member's view. Members report a dead leader for up to two seconds.
    pub leader: Option<MemberId>,
    /// The raft term. If two members report different leaders, the report with the higher term is current.
    pub term: u64,
    /// The last applied raft index (zero before 3.4).
    pub applied_index: u64,
    /// Size of the database.
    pub database: DatabaseSize,
    /// The release, for instance `3.6.16`; escaped and cut.
    pub version: String,
    /// Whether the member is a learner, which has no vote.
    pub is_learner: bool,
    /// Alarms of all members of the cluster, in this member's view.
    pub alarms: Vec<Alarm>,
    /// What the member's own raft says about its vote, if it was asked and knows it. The member list can differ.
    pub suffrage: Option<Suffrage>,
    /// The version to which a downgrade of the cluster is in progress, escaped and cut. Members report it since 3.6.
    pub downgrade: Option<String>,
}

/// Size of a member's database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatabaseSize {
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of the file that contain data. Defragmentation frees the rest.
    pub in_use: u64,
    /// Bytes at which the member rejects writes; 0 if it does not report them, as before 3.6.
    pub quota: u64,
}

/// Whether raft counts a member's vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suffrage {
    /// The member has voted in its current term, or leads.
    Voter,
    /// The member joined as a learner and was not promoted since it started.
    Learner,
}

/// An active alarm of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// The member with the alarm; zero if etcd could not determine it.
    pub member_id: MemberId,
    /// The kind of alarm.
    pub kind: AlarmKind,
}

/// The kinds of alarm that affect a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmKind {
    /// The member's data differs from the data of its peers.
    Corrupt,
    /// The cluster rejects writes until space is freed. Votes are not affected.
    NoSpace,
}

/// The scheme of a client URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Without TLS.
    Http,
    /// Over TLS.
    Https,
}

/// An entry of the member list. The member may never have started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedMember {
    /// The unique id.
    pub id: MemberId,
    /// The name, as [`displayed_name`] returns it. It need not be unique, and is empty until the member has started.
    pub name: String,
    /// The addresses for its peers.
    pub peer_urls: Vec<String>,
    /// The advertised addresses for clients. Empty until the member has started; may name a Service that all members
    /// share.
    pub client_urls: Vec<String>,
    /// Whether the member is a learner, which has no vote.
    pub is_learner: bool,
}

/// Returns the name of a member in the form in which names are compared and shown: a member chooses any text as its name.
/// The form is the same for the name in a member list and in the flags of a pod, so that equal names stay equal.
pub fn displayed_name(name: &str) -> String {
    to_bounded_line(name, MAX_NAME_CHARS)
}

/// Returns the version of a member, escaped and cut.
pub fn displayed_version(version: &str) -> String {
    to_bounded_line(version, MAX_VERSION_CHARS)
}

// === impl Alarm ===

impl Alarm {
    /// Parses an entry of `Status.errors` such as `memberID:10276657743932975437 alarm:CORRUPT `, with the id in
    /// decimal. The number of blanks between the parts and at the end differs by release, and since 3.7 by build,
    /// because protobuf does not guarantee its text format. Other entries ("etcdserver: no leader") are not alarms.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split_whitespace();
        let id = parts.next()?.strip_prefix("memberID:")?;
        let kind = match parts.next()?.strip_prefix("alarm:")? {
            "CORRUPT" => AlarmKind::Corrupt,
            "NOSPACE" => AlarmKind::NoSpace,
            _ => return None,
        };
        Some(Self { member_id: MemberId(id.parse().ok()?), kind })
    }
}

// === impl DatabaseSize ===

impl DatabaseSize {
    /// Free bytes from which on defragmentation is worth the pause of a member.
    pub const MIN_FREE: u64 = 1 << 20;

    /// Bytes that defragmentation frees.
    pub const fn free(self) -> u64 {
        self.bytes.saturating_sub(self.in_use)
    }

    /// Whether the free share is at least this percentage, and at least [`Self::MIN_FREE`].
    pub fn is_fragmented(self, percent: u8) -> bool {
        self.free() >= (self.bytes.saturating_mul(percent.into()) / 100).max(Self::MIN_FREE)
    }
}

/// Returns a number of bytes as text, such as `12.3 MiB`.
pub fn mebibytes(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) >> 20;
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

// === impl Scheme ===

impl Scheme {
    /// The scheme as in a URL.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

// === impl ListedMember ===

impl ListedMember {
    /// Whether a client URL of the member has this scheme.
    pub fn advertises(&self, scheme: Scheme) -> bool {
        let expected = scheme.as_str();
        let mut schemes = self.client_urls.iter().filter_map(|url| url.split_once("://"));
        schemes.any(|(scheme, _)| scheme.eq_ignore_ascii_case(expected))
    }

    /// Whether the member has ever started. A voter counts towards the quorum before its first start.
    pub fn has_started(&self) -> bool {
        !self.name.is_empty()
    }
}

// === impl MemberId, ClusterId ===

impl MemberId {
    /// Parses the id in hexadecimal, as it is displayed.
    pub fn from_hex(text: &str) -> Option<Self> {
        let is_hex = !text.starts_with('+');
        u64::from_str_radix(text, 16).ok().filter(|_| is_hex).map(Self)
    }
}

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
    use super::{Alarm, AlarmKind, DatabaseSize, MemberId, mebibytes};

    #[test]
    fn parses_alarms_of_status_errors() {
        let alarm = Alarm::parse("memberID:10276657743932975437 alarm:CORRUPT ");
        assert_eq!(
            alarm,
            Some(Alarm { member_id: MemberId(10_276_657_743_932_975_437), kind: AlarmKind::Corrupt })
        );
        let alarm = Alarm::parse("memberID:7  alarm:NOSPACE");
        assert_eq!(alarm, Some(Alarm { member_id: MemberId(7), kind: AlarmKind::NoSpace }));
    }

    #[test]
    fn ignores_status_errors_that_are_no_alarms() {
        assert_eq!(Alarm::parse("etcdserver: no leader"), None);
        assert_eq!(Alarm::parse("memberID:x alarm:CORRUPT"), None);
        assert_eq!(Alarm::parse("memberID:7 alarm:SOMETHING_NEW"), None);
    }

    #[test]
    fn small_gain_is_no_fragmentation() {
        const MIB: u64 = 1 << 20;
        let database = |free: u64| DatabaseSize { bytes: 100 * MIB, in_use: 100 * MIB - free, quota: 0 };
        assert!(database(MIB).is_fragmented(0) && !database(MIB - 1).is_fragmented(0));
        assert!(database(30 * MIB).is_fragmented(30) && !database(30 * MIB - 1).is_fragmented(30));
        assert_eq!(
            (mebibytes(0), mebibytes(MIB + MIB / 4)),
            (String::from("0.0 MiB"), String::from("1.2 MiB"))
        );
    }
}
