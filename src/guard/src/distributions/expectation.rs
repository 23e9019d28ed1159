//! The expected result for a pod of the corpus.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Marks a key of a Secret that holds the certificate of a CA.
pub(super) const CA_MARK: &str = " (CA)";

/// Marks a key of a Secret that holds a certificate which etcd rejects as that of a client, by its key usage.
pub(super) const SERVER_MARK: &str = " (server)";

/// The expected result. Fields that are absent are not compared, except `reached`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Expectation {
    /// The project.
    pub distribution: String,
    /// The version of the project that the pod follows.
    #[serde(default)]
    pub version: String,
    /// The variant of the installation.
    #[serde(default)]
    pub mode: String,
    /// Whether the pod is a member without an annotation.
    pub recognized: bool,
    /// The rule or the veto, as `inspect` names it.
    pub reason: String,
    /// The container of the member.
    #[serde(default)]
    pub container: Option<String>,
    /// Scheme and port; `probed` replaces a scheme that only a probe determines.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// The name that the certificate must have.
    #[serde(default)]
    pub server_name: Option<String>,
    /// The names in the member's certificate, if they are not those of the settings.
    #[serde(default)]
    pub certificate_names: Vec<String>,
    /// The objects that exist in the namespace, as `KIND/NAME`, with their keys.
    #[serde(default)]
    pub objects: BTreeMap<String, Vec<String>>,
    /// The content of keys that hold etcd's configuration file, as `KIND/NAME/KEY`.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Whether etcd listens on the loopback address only, also where the specification does not show it.
    #[serde(default)]
    pub listens_on_loopback: bool,
    /// The existing Secrets that are read, in order, until all credentials are found.
    #[serde(default)]
    pub secrets: Option<Vec<String>>,
    /// The existing `ConfigMaps` that are read, in order.
    #[serde(default)]
    pub config_maps: Vec<String>,
    /// The certificate that identifies the guard, as `NAME/KEY`.
    #[serde(default)]
    pub certificate: Option<String>,
    /// The CA, as `NAME/KEY`.
    #[serde(default)]
    pub ca: Option<String>,
    /// The password, as `NAME/KEY`.
    #[serde(default)]
    pub user: Option<String>,
    /// The durability of the data.
    #[serde(default)]
    pub storage: Option<String>,
    /// The claim of the data.
    #[serde(default)]
    pub claim: Option<String>,
    /// The name of the member in etcd.
    #[serde(default)]
    pub member_name: Option<String>,
    /// The way in which the survey reports a distribution that is not recognized: `port`, or `namespace` for a namespace
    /// without a member.
    #[serde(default)]
    pub reported: Option<String>,
    /// Whether etcd runs inside another program.
    #[serde(default)]
    pub embedded: bool,
    /// The requirement: `nothing`, `Role`, `annotation` (and the Role, if objects exist) or `no`.
    #[serde(default)]
    pub reached: Option<String>,
    /// The annotation that is required. `inspect` names it, and its value except for words in capital letters.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// The sentence for the page.
    pub action: String,
    /// A defect that is known. The test fails if it no longer exists.
    #[serde(default)]
    pub known_gap: Option<String>,
}
