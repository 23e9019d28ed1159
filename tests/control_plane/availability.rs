//! Outages and restarts of the guard and of the API server, and concurrent deletions.

mod api_server_outage;
mod guard_outage;
mod lease_records;
mod match_conditions;
mod missing_permission;
mod shutdown;
mod stress;
mod tenants;
mod testbed_cleanup;
