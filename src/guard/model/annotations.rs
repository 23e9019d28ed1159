//! Names of the annotations that choose policies.

/// Deletion of the leader: `deny`, `transfer` or `allow`.
pub(in crate::guard) const LEADER: &str = "etcd-guard.io/leader";

/// Deletion of the only voter: `deny` or `allow`.
pub(in crate::guard) const SINGLE_MEMBER: &str = "etcd-guard.io/single-member";

/// Deletions that end a member for good while the cluster has no spare voter: `deny` or `allow`.
pub(in crate::guard) const EPHEMERAL_DATA: &str = "etcd-guard.io/ephemeral-data";

/// Enforcement of denials: `enforce` or `audit`.
pub(in crate::guard) const MODE: &str = "etcd-guard.io/mode";

/// End of a break-glass, as an RFC 3339 time.
pub(in crate::guard) const ALLOW_UNTIL: &str = "etcd-guard.io/allow-delete-until";

/// Reason of a break-glass.
pub(in crate::guard) const ALLOW_REASON: &str = "etcd-guard.io/allow-delete-reason";

/// Whether a pod runs a member: `"true"` or `"false"`.
pub(in crate::guard) const MEMBER: &str = "etcd-guard.io/member";

/// Value that replaces `"false"` of [`MEMBER`] where the floor does not let annotations exclude a pod.
pub(in crate::guard) const MEMBER_OVERRULED: &str = "overruled";

/// Client URL of the members, for pods whose specification does not show it. The host is the name in the certificate; it
/// can contain `$(POD_NAME)` and `$(POD_NAMESPACE)`, or be empty as in `https://:2379`.
pub(in crate::guard) const ENDPOINTS: &str = "etcd-guard.io/endpoints";

/// Secret with the client certificate and the CA.
pub(in crate::guard) const CLIENT_TLS_SECRET: &str = "etcd-guard.io/client-tls-secret";

/// Secret with the user and the password.
pub(in crate::guard) const AUTH_SECRET: &str = "etcd-guard.io/auth-secret";
