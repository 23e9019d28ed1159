//! Events, metrics and traces, and the calls that the guard sends and receives.

mod admission_requests;
pub(crate) mod cost;
mod dashboard;
mod events;
mod grpc_calls;
mod memory;
mod survey;
mod survey_shares;
mod traces;
mod webhook_failures;
