//! Outages and restarts of the guard and of the API server, and concurrent deletions.

mod guard_outage;
mod lease_records;
mod match_conditions;
mod missing_permission;
mod shutdown;
mod tenants;
mod testbed_cleanup;
