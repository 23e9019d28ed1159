//! Owners of member pods, of their StatefulSets and of their claims, as they were while both existed.
//!
//! The garbage collector deletes an object whose owner does not exist. If the owner existed together with the object,
//! its deletion is the cause, and the deletion of the object is part of a cascade. If the owner never existed, the
//! ownerReference is dangling, as restored backups leave it, and the garbage collector would delete healthy members.
//! The absence of the owner does not distinguish the two cases. The guard therefore records each dependent with its
//! owner while both exist, in one Lease per guarded namespace. The record survives restarts and has no expiry by time.
//!
//! The same Lease contains the owners of clusters that ever had several voters.

pub(crate) mod leaving;
pub(crate) mod record;
pub(crate) mod recorder;
pub(crate) mod store;
pub(crate) mod voter_history;
