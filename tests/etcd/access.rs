//! Clusters that require TLS, client certificates or a user.

mod auth;
mod grpc_calls;
mod secrets;
mod tls;
