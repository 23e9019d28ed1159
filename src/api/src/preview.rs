//! The answer to `POST /check`: the verdict that a request would get.

use serde::{Deserialize, Serialize};

use super::Role;
use etcd_guard_core::policy::PolicySetting;

/// The verdict that a request would get now. The preview is not counted, logged or reserved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    /// `allowed`, `denied`, or `audited`: allowed with a warning because of the policy.
    pub verdict: String,
    /// The reason code.
    pub reason: String,
    /// The explanation, one or two sentences.
    pub message: String,
    /// The second sentence of `message`, if present: the remedy or the next step.
    pub next: Option<String>,
    /// HTTP status of a denial.
    pub code: Option<u16>,
    /// The warnings that kubectl would print.
    pub warnings: Vec<String>,
    /// The cluster, `NAMESPACE/OWNER`, if known.
    pub cluster: Option<String>,
    /// Number of voters in the member list, if the verdict depends on it.
    pub voters: Option<usize>,
    /// Number of voters that the probe found healthy.
    pub healthy: Option<usize>,
    /// Number of voters that form a quorum.
    pub quorum: Option<usize>,
    /// Number of healthy voters after the operation.
    pub remaining: Option<usize>,
    /// The leader's member id in hexadecimal.
    pub leader: Option<String>,
    /// The member id of the pod in hexadecimal, if the verdict depends on it.
    pub member: Option<String>,
    /// The role of that member.
    pub role: Option<Role>,
    /// The effective policy, setting by setting.
    #[serde(default)]
    pub policy: Vec<PolicySetting>,
    /// The section of the manual that explains a denial.
    #[serde(default)]
    pub documentation: Option<String>,
}
