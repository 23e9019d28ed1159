//! Errors of calls to the API server.

use std::time::Duration;

use etcd_guard_core::escape::{MAX_ERROR_CHARS, to_bounded_line};

/// A read that returned no object. Only [`LookupError::NotFound`] proves that the object does not exist.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LookupError {
    /// The API server responded that the object does not exist.
    #[error("{subject} does not exist")]
    NotFound {
        /// For instance `pod prod/etcd-1`.
        subject: String,
    },
    /// The API server authenticated this client and denied the read.
    #[error("reading {subject} is forbidden: {cause}")]
    Forbidden {
        /// The object to read.
        subject: String,
        /// The message of the API server.
        cause: String,
    },
    /// The API server returned an error or an unreadable body, or was unreachable.
    #[error("reading {subject} failed: {cause}")]
    Failed {
        /// The object to read.
        subject: String,
        /// The message of the API server or the root cause of the connection's error.
        cause: String,
    },
    /// The response exceeds a limit, which bounds the memory of this process.
    #[error("reading {subject}: {cause}")]
    TooLarge {
        /// The object or the list to read.
        subject: String,
        /// The limit.
        cause: String,
    },
    /// The API server did not respond in time.
    #[error("reading {subject}: the API server did not respond within {}", humantime::format_duration(*.limit))]
    TimedOut {
        /// The object to read.
        subject: String,
        /// The timeout.
        limit: Duration,
    },
}

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The object was changed, created or deleted by another client after it was read.
    #[error("{operation}: the object was changed concurrently")]
    Conflict {
        /// The attempted operation.
        operation: String,
    },
    /// Any other reason. Whether the call took effect is unknown.
    #[error("{operation} failed: {cause}")]
    Failed {
        /// The attempted operation.
        operation: String,
        /// The message of the API server or the root cause of the connection's error.
        cause: String,
    },
}

/// A write of a Lease that failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Another process wrote the Lease after it was read.
    #[error("the Lease was changed concurrently")]
    Conflict,
    /// The API server, or another admission webhook, denied the write.
    #[error("writing Lease {name} is forbidden: {cause}")]
    Forbidden {
        /// The Lease.
        name: String,
        /// The message of the API server.
        cause: String,
    },
    /// The API server did not respond in time. Whether the write took effect is unknown.
    #[error("writing Lease {name}: the API server did not respond within {}", humantime::format_duration(*.limit))]
    TimedOut {
        /// The Lease.
        name: String,
        /// The timeout.
        limit: Duration,
    },
    /// Any other reason. Whether the write took effect is unknown.
    #[error("writing Lease {name} failed: {cause}")]
    Failed {
        /// The Lease.
        name: String,
        /// The message of the API server or the root cause of the connection's error.
        cause: String,
    },
}

/// Returns the message of the API server, or the root cause of any other error, escaped and cut. A message can contain
/// texts of objects and of other webhooks.
pub fn error_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => to_bounded_line(&status.message, MAX_ERROR_CHARS),
        other => root_cause(other),
    }
}

/// Returns the last error of the chain: `refused` in "service error: client error (Connect): tcp connect error:
/// refused".
pub(super) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    to_bounded_line(&cause.to_string(), MAX_ERROR_CHARS)
}
