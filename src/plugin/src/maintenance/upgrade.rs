//! The preconditions of a rolling upgrade of etcd, as its documentation states them: a healthy cluster of one release, one
//! minor version at a time, from a recent patch release, and no downgrade in progress.
//!
//! Sources: `etcd.io/docs/latest/upgrades/upgrading-etcd`, `.../upgrade_3_6`, `.../upgrade_3_7`.

use std::fmt;

use etcd_guard_api::{ClusterStatus, MemberStatus, Role};

/// The lowest release from which a cluster may be upgraded to a minor version: earlier ones have defects that fail or
/// corrupt the upgrade.
const LOWEST_SOURCES: [([u32; 2], Release); 2] = [
    ([3, 6], Release { numbers: [3, 5, 32] }),
    // Earlier releases may not be compatible with members of 3.7.
    ([3, 7], Release { numbers: [3, 6, 11] }),
];

/// A release of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Release {
    numbers: [u32; 3],
}

// === impl Release ===

impl Release {
    /// Parses a version such as `3.6.16` or `v3.6.1-debian-12-r0`.
    pub(crate) fn parse(version: &str) -> Option<Self> {
        let version = version.strip_prefix('v').unwrap_or(version);
        let mut parts = version.split(['.', '-', '+', '_']);
        let mut number = || parts.next()?.parse::<u32>().ok();
        Some(Self { numbers: [number()?, number()?, number()?] })
    }

    /// Returns the release in the tag of an image reference.
    pub(crate) fn of_image(image: &str) -> Option<Self> {
        let name = image.split('@').next()?.rsplit('/').next()?;
        Self::parse(name.split_once(':')?.1)
    }

    fn line(self) -> [u32; 2] {
        let [major, minor, _] = self.numbers;
        [major, minor]
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// Returns the reasons against an upgrade of this cluster to this release. While an upgrade is in progress, members of the
/// target's minor version are permitted.
pub(crate) fn objections(cluster: &ClusterStatus, target: Release) -> Vec<String> {
    let label = |member: &MemberStatus| {
        member.pod.clone().or_else(|| member.name.clone()).unwrap_or_else(|| String::from("a member"))
    };
    let mut found = Vec::new();
    for member in cluster.members.iter().filter(|member| member.role != Role::NotListed) {
        let version = member.version.as_deref();
        let Some(release) = version.and_then(Release::parse) else {
            found.push(format!("the release of {} is unknown", label(member)));
            continue;
        };
        found.extend(
            objection(release, target).map(|cause| format!("{} runs {release}: {cause}", label(member))),
        );
        found.extend(member.downgrade.as_ref().map(|version| {
            format!(
                "{} reports a downgrade to {version} in progress; cancel it: etcdctl downgrade cancel",
                label(member)
            )
        }));
    }
    found
}

/// Returns the reason against an upgrade between these releases.
fn objection(release: Release, target: Release) -> Option<String> {
    let ([major, minor], [target_major, target_minor]) = (release.line(), target.line());
    if release.line() > target.line() {
        return Some(format!(
            "{target} is an earlier minor version; a downgrade requires etcdctl downgrade enable"
        ));
    }
    if release.line() == target.line() {
        return None;
    }
    if major != target_major || minor + 1 != target_minor {
        return Some(format!("upgrade by one minor version at a time, first to {major}.{}", minor + 1));
    }
    let (_, lowest) = LOWEST_SOURCES.iter().find(|(line, _)| *line == target.line())?;
    (release < *lowest)
        .then(|| format!("an upgrade to {target_major}.{target_minor} requires {lowest} or later"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintenance::health::tests::cluster;

    fn objections_from(version: &str, target: &str) -> Vec<String> {
        let mut cluster = cluster();
        for member in &mut cluster.members {
            member.version = Some(version.to_owned());
        }
        objections(&cluster, Release::parse(target).unwrap())
    }

    #[test]
    fn release_is_read_from_image_tags() {
        let of = |image| Release::of_image(image).map(|release| release.to_string());
        assert_eq!(of("quay.io/coreos/etcd:v3.6.16").as_deref(), Some("3.6.16"));
        assert_eq!(of("registry:5000/bitnami/etcd:3.6.1-debian-12-r0").as_deref(), Some("3.6.1"));
        assert_eq!(of("registry.k8s.io/etcd:3.6.1-0@sha256:0123").as_deref(), Some("3.6.1"));
        for image in ["etcd", "etcd:latest", "registry:5000/etcd", "etcd@sha256:0123", "etcd:v3.6"] {
            assert_eq!(of(image), None, "{image}");
        }
    }

    #[test]
    fn one_minor_version_and_patches_are_permitted() {
        for (version, target) in
            [("3.5.35", "3.6.16"), ("3.6.16", "3.6.17"), ("3.6.16", "3.6.15"), ("3.4.40", "3.5.35")]
        {
            assert_eq!(objections_from(version, target), [""; 0], "{version} {target}");
        }
    }

    #[test]
    fn skipped_and_earlier_versions_are_objections() {
        let first = |version, target| objections_from(version, target).into_iter().next().unwrap_or_default();
        assert_eq!(
            first("3.5.35", "3.7.0"),
            "etcd-0 runs 3.5.35: upgrade by one minor version at a time, first to 3.6"
        );
        assert_eq!(
            first("3.5.20", "3.6.16"),
            "etcd-0 runs 3.5.20: an upgrade to 3.6 requires 3.5.32 or later"
        );
        assert_eq!(
            first("3.6.10", "3.7.0"),
            "etcd-0 runs 3.6.10: an upgrade to 3.7 requires 3.6.11 or later"
        );
        assert_eq!(
            first("3.6.16", "3.5.35"),
            "etcd-0 runs 3.6.16: 3.5.35 is an earlier minor version; a downgrade requires etcdctl downgrade enable"
        );
    }

    #[test]
    fn unknown_releases_and_downgrades_are_objections() {
        let mut cluster = cluster();
        cluster.members[1].version = None;
        cluster.members[2].downgrade = Some(String::from("3.4.0"));
        assert_eq!(
            objections(&cluster, Release::parse("3.6.16").unwrap()),
            [
                "the release of etcd-1 is unknown",
                "etcd-2 reports a downgrade to 3.4.0 in progress; cancel it: etcdctl downgrade cancel"
            ]
        );
    }

    /// A resumed upgrade has members of both releases.
    #[test]
    fn members_of_the_target_are_permitted() {
        let mut cluster = cluster();
        cluster.members[1].version = Some(String::from("3.6.16"));
        assert_eq!(objections(&cluster, Release::parse("3.6.16").unwrap()), [""; 0]);
    }
}
