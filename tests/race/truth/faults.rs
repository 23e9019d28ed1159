//! What is done to members, with the truth's knowledge.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Fault, STARTING, Truth};
use crate::support::process_node::Order;

/// How long a slowed member stands still, and for how long it then goes on: a fifth of its time is left to it, and no
/// pause is as long as an election's.
const STANDS: Duration = Duration::from_millis(80);
const GOES: Duration = Duration::from_millis(20);

impl Truth {
    /// Kills or freezes the process of a pod that is not on its way out; whether it did.
    pub(crate) async fn fault(&self, name: &str, order: Order) -> bool {
        let mut known = self.known.lock().await;
        let serving = self.serving(&mut known).await;
        let Some(uid) = self.running_uid(name) else { return false };
        if known.out.contains_key(name) || known.frozen.contains_key(name) {
            return false;
        }
        let served = serving.iter().any(|it| it == name);
        if !self.node.try_order(&self.namespace, name, order).await {
            // It may have been carried out when it was given up.
            self.resume(name, &uid).await;
            return false;
        }
        // Until the order was carried out the member may have answered: on a busy machine that takes a while.
        known.faults.insert(name.to_owned(), Fault { at: Instant::now(), served });
        if order == Order::Pause {
            known.frozen.insert(name.to_owned(), uid);
        }
        true
    }

    /// Lets a frozen process go on.
    pub(crate) async fn thaw(&self, name: &str) {
        let mut known = self.known.lock().await;
        if let Some(uid) = known.frozen.remove(name) {
            self.resume(name, &uid).await;
        }
    }

    /// Leaves a process only a part of its time, as a node does that is short of it; whether it did. The member serves
    /// meanwhile, slowly.
    pub(crate) async fn slow(&self, name: &str, lasts: Duration) -> bool {
        let Some(uid) = self.running_uid(name) else { return false };
        let (end, mut did) = (Instant::now() + lasts, false);
        while Instant::now() < end && self.running_uid(name).as_ref() == Some(&uid) {
            did |= self.node.try_order(&self.namespace, name, Order::Pause).await;
            sleep(STANDS).await;
            self.resume(name, &uid).await;
            sleep(GOES).await;
        }
        did
    }

    /// The pods that are not on their way out, and to which nothing was done that lasts. A yes for a pod that just starts
    /// is often not carried out: its status changes meanwhile, the apiserver asks again, and gets a no.
    pub(crate) async fn present(&self) -> Vec<String> {
        let known = self.known.lock().await;
        let starts = |it: &String| known.faults.get(it).is_some_and(|fault| fault.at.elapsed() < STARTING);
        let is_present =
            |it: &&String| !known.out.contains_key(*it) && !known.frozen.contains_key(*it) && !starts(it);
        self.names.iter().filter(is_present).cloned().collect()
    }

    /// Lets the process of this pod go on, if it still runs.
    async fn resume(&self, name: &str, uid: &str) {
        while self.running_uid(name).as_deref() == Some(uid)
            && !self.node.try_order(&self.namespace, name, Order::Resume).await
        {}
    }
}
