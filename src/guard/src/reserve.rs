//! Reservations of approved deletions: the ledger and its Lease store.

mod handovers;
pub(crate) mod store;
