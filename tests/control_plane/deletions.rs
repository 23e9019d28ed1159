//! Single deletions of pods: which are approved, which are denied, and by which policy.

mod collection;
mod dry_run;
mod floor;
mod follower;
mod forged_reviews;
mod independent_members;
mod later_refusal;
mod leader;
mod local_data;
mod membership;
mod native_sidecars;
pub(crate) mod never_served;
mod one_at_a_time;
mod policies;
mod replicas;
mod requesters;
mod separate_owners;
mod unguarded_pods;
mod unhealthy;
mod updates;
