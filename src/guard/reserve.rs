//! Reservations of approved deletions: the ledger and its Lease store.

mod handovers;
pub(in crate::guard) mod ledger;
pub(in crate::guard) mod store;
