//! Settings that all watches share.

/// Length of one watch call, in seconds. A connection that broke without notice shows no changes until the call ends,
/// and a revoked annotation must not remain in effect much longer than that.
pub(super) const WATCH_SECONDS: u32 = 30;
