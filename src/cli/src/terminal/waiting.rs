//! Notices about calls that take long, for a user who waits.

use std::{
    io::{self, Write},
    time::Duration,
};

use tokio::time::timeout;

use etcd_guard_core::escape::{MAX_ERROR_CHARS, to_bounded_line};

/// Time before the notice. Shorter waits need no explanation.
const NOTICE_DELAY: Duration = Duration::from_secs(2);

/// Returns the result of a call. If the call takes longer than two seconds, prints `waiting for SUBJECT` to standard error,
/// once.
pub fn with_notice<T>(subject: &str, call: impl Future<Output = T>) -> impl Future<Output = T> {
    // Boxed here, so that the future of the caller does not grow by that of the call.
    let mut call = Box::pin(call);
    async move {
        match timeout(NOTICE_DELAY, call.as_mut()).await {
            Ok(result) => result,
            Err(_) => {
                // A closed standard error does not end the command.
                let _ = write_notice(subject, &mut io::stderr().lock());
                call.await
            }
        }
    }
}

/// Writes the notice. The subject contains texts of the kubeconfig and of the API server.
pub fn write_notice(subject: &str, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "waiting for {}", to_bounded_line(subject, MAX_ERROR_CHARS))
}
