//! From a pod to its etcd member: recognition, endpoint, credentials, and storage.

pub(in crate::guard) mod advertised_hosts;
pub(in crate::guard) mod claim_storage;
pub(in crate::guard) mod credentials;
mod endpoint;
pub(in crate::guard) mod etcd_pod;
mod etcdctl;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod member_settings;
pub(in crate::guard) mod recognition;
pub(in crate::guard) mod stopped_pod;
mod storage;
