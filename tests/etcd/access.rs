//! Clusters that require TLS, client certificates or a user.

mod auth;
mod early_connections;
mod grpc_calls;
mod hidden_settings;
mod secrets;
mod tls;
