//! The sections of the manual that the lines of the report name.

/// A page of the manual, without its extension, and the anchor of one of its headings.
pub(crate) type Section = (&'static str, &'static str);

/// The section of a check that requires a permission which the user lacks.
pub(super) const PERMISSIONS_OF_USERS: Section = ("permissions", "permissions-of-users");

/// The section about the first label of a namespace.
pub(super) const LABEL: Section = ("install", "6-label-the-namespace");

/// What an installation needs.
pub(super) const PREREQUISITES: Section = ("install", "install");

/// The section of a check that is not in the list. A test prevents that.
const OTHER: Section = ("cli", "doctor");

/// The section of each check.
const SECTIONS: [(&str, Section); 23] = [
    ("api-server", ("support", "kubernetes")),
    ("installation", ("install", "2-the-guard")),
    ("clock", ("limitations", "what-it-blocks")),
    ("webhooks", ("security", "protect-the-webhook-configuration")),
    ("ca-bundle", ("alerts", "etcdguardcertificateends")),
    ("certificate", ("alerts", "etcdguardcertificateends")),
    ("permissions", ("permissions", "permissions")),
    ("policies", ("security", "certificates")),
    ("network", ("alerts", "etcdguardwebhookfailing")),
    ("replicas", ("alerts", "etcdguarddown")),
    ("versions", ("support", "versions-of-the-guard")),
    ("disruption-budget", ("install", "before-production")),
    ("clusters", ("alerts", "etcdguardclusterunreachable")),
    ("traps", ("reasons", "traps")),
    ("etcd-versions", ("support", "etcd")),
    ("recognition", ("policies", "which-pods-are-members")),
    ("priority", ("recipes", "the-guard-stays-pending")),
    // Before an installation.
    ("admission", ("support", "kubernetes")),
    ("pods", ("alerts", "etcdguarddown")),
    ("certificates", ("install", "certificates")),
    ("other-webhooks", ("alerts", "etcdguardreservationstuck")),
    ("etcd", ("policies", "which-pods-are-members")),
    ("etcd-budgets", ("install", "before-production")),
];

/// Returns the section of a check.
pub(super) fn section_of(check: &str) -> Section {
    SECTIONS.iter().find(|(name, _)| *name == check).map_or(OTHER, |(_, section)| *section)
}

/// Returns the sections of all lines.
#[cfg(any(test, feature = "fixtures"))]
pub(crate) fn all() -> Vec<Section> {
    let others = [PERMISSIONS_OF_USERS, LABEL, PREREQUISITES, OTHER];
    SECTIONS.iter().map(|(_, section)| *section).chain(others).collect()
}
