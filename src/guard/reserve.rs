//! Reservations of approved deletions: the ledger and its Lease store.

pub(in crate::guard) mod ledger;
pub(in crate::guard) mod store;
