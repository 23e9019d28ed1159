//! What the server and the kubectl plugin share: who calls the API server, how a program prints, and the webhook
//! configurations that the server registers and `doctor` compares.
//!
//! - [`access`]: the flags that choose a kubeconfig and an identity, and [`client`], the HTTP client that uses them.
//! - [`logging`]: log lines on standard error, as text or JSON, with foreign text escaped.
//! - [`printing`] and [`terminal`]: documents, errors, questions and colors in the forms that users of kubectl expect.
//! - [`registration`]: the shipped webhook configurations.
//!
//! This crate must not know members, evaluations or the server.

pub mod access;
pub mod client;
pub mod logging;
pub mod printing;
#[cfg(any(test, feature = "fixtures"))]
pub mod reference;
pub mod registration;
pub mod terminal;
