//! Reservations of approved deletions: the ledger and its Lease store.

mod handovers;
pub(crate) mod ledger_error;
pub(crate) mod store;
